"""Run a Python program with a hook that reports failures, either directly or in a fork of a prepared process.

python [options] .../preload/__main__.py run[=STDERR_OF_ENGINE] DEVICE_DIR script|module|code TARGET [ARGUMENTS...]
python [options] .../preload/__main__.py preload DESCRIPTOR [PADDING]

A Python older than 3.10 uses only this file: it runs the program without the hook and preloads nothing.
"""

_born_with = dict(globals())  # the globals that Python gives to every `__main__`; copied first, while still unchanged

import sys  # noqa: E402

_MIN_VERSION = (3, 10)


def _load_run_main():  # type: ignore[no-untyped-def] # noqa: ANN202 - the package's types cannot be imported in this file
    """Load the sibling modules as a package with a private name, without importing importlib."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import spec_from_file_location

    directory = __file__.rpartition("/")[0] or "."
    init = directory + "/__init__.py"
    spec = spec_from_file_location("_tlaunch_preload", init, submodule_search_locations=[directory])
    assert spec is not None, "there is a finder"
    assert spec.loader is not None, "there is a loader for .py files"
    sys.modules[spec.name] = package = module_from_spec(spec)
    spec.loader.exec_module(package)
    return __import__("_tlaunch_preload.run_main").run_main


def _do_without() -> None:
    """Run the program without the failure hook. A fork server only reports that preloading is not possible."""
    import os

    if sys.argv[1] == "preload":
        version, minimum = (".".join(map(str, numbers[:2])) for numbers in (sys.version_info, _MIN_VERSION))
        os.write(int(sys.argv[2]), f'{{"failed": "Python {version} is older than {minimum}"}}\n'.encode())
        return
    engines_stderr = sys.argv[1].partition("=")[2]
    if engines_stderr:
        os.close(int(engines_stderr))
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")[:-1]
    this = next(index for index, word in enumerate(words) if word.endswith(b"/preload/__main__.py"))
    kind, target = words[this + 3 : this + 5]
    before = {b"module": [b"-m"], b"code": [b"-c"], b"script": [b"--"] if target.startswith(b"-") else []}[kind]
    os.execv(sys.executable, words[:this] + before + words[this + 4 :])  # noqa: S606 - no shell is wanted


if __name__ == "__main__" and sys.version_info < _MIN_VERSION:
    _do_without()
elif __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):
        del sys.path[0]  # this directory
    _born_with = {name: value for name, value in _born_with.items() if name.startswith("__")}
    _load_run_main().main(_born_with)  # type: ignore[no-untyped-call,unused-ignore]
