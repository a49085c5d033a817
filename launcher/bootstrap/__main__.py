"""Become a Python program, with a hook that tells of failures; at once, or forked from a process that is ready for it.

python [options] .../bootstrap/__main__.py run DEVICE_DIR script|module|code TARGET [ARGUMENTS...]
python [options] .../bootstrap/__main__.py preload DESCRIPTOR [PADDING]
"""

_born_with = dict(globals())  # what this Python gives to the `__main__` of every script: first of all, hence pristine

import sys  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

if not getattr(sys.flags, "safe_path", sys.flags.isolated):
    del sys.path[0]  # this directory


def _load_siblings() -> "ModuleType":
    """Under a private name, by hand: importlib is a package that a program may want to see unloaded."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    directory = __file__.rpartition("/")[0] or "."
    spec = spec_from_file_location(
        "_tlaunch_bootstrap", directory + "/__init__.py", submodule_search_locations=[directory]
    )
    assert spec is not None, "there is a finder"
    assert spec.loader is not None, "there is a loader for .py files"
    sys.modules[spec.name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    start: ModuleType = __import__("_tlaunch_bootstrap.start").start
    return start


if __name__ == "__main__":
    _load_siblings().main({name: value for name, value in _born_with.items() if name.startswith("__")})
