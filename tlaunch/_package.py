"""Find the package `launcher` in the directory beside this one, wherever `sys.path` leads.

Many projects have a package or module `launcher` of their own. In processes of tlaunch, `claim_name` loads tlaunch's package by
its path before anything imports that name. In a user's program the name belongs to the program, so `package_for` may return
a copy under another name. In modules of the copy, `from launcher import ...` means the copy.
"""

from __future__ import annotations

import builtins
import os
import sys
from _frozen_importlib import module_from_spec  # a light program need not load importlib
from _frozen_importlib_external import PathFinder, SourceFileLoader, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_NAME, _COPY = "launcher", "_tlaunch_launcher"  # launcher/__init__.py knows the second
_DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), _NAME)  # noqa: PTH100, PTH118, PTH120
_FILE = _DIRECTORY + "/__init__.py"
# A script imports these first, and may then add the directory of its own `launcher` to sys.path. They share nothing with others.
_FROM_COPY = frozenset({"__version__", "beat", "metric"})


def claim_name() -> None:
    """Import tlaunch's package as `launcher`. Call this only in processes of tlaunch."""
    if _NAME not in sys.modules:
        _load(_NAME, SourceFileLoader)


def package_for(name: str) -> ModuleType:
    """Return tlaunch's package, which has the attribute `name`, and leave `launcher` to a program that has its own."""
    found = sys.modules.get(_NAME)
    if found is not None and _is_ours(found.__file__):
        return found
    if found is None and name not in _FROM_COPY:
        spec = PathFinder.find_spec(_NAME)
        if spec is not None and _is_ours(spec.origin):
            return __import__(_NAME)
    if _COPY not in sys.modules:
        sys.meta_path.insert(0, _Finder)
        _load(_COPY, _Loader)
    return sys.modules[_COPY]


def _is_ours(file: str | None) -> bool:
    return file is not None and os.path.realpath(file) == os.path.realpath(_FILE)


def _load(name: str, kind: type[SourceFileLoader]) -> None:
    loader = kind(name, _FILE)
    spec = spec_from_file_location(name, _FILE, loader=loader, submodule_search_locations=[_DIRECTORY])
    assert spec is not None, "there is a loader"
    sys.modules[name] = module = module_from_spec(spec)
    loader.exec_module(module)


class _Finder:
    """Finds the modules of the copy."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_COPY + "."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    """Loads a module of the copy."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(name: str, *rest: Any) -> Any:
    """Do what an import statement does in a module of the copy."""
    return __import__(_COPY + name.removeprefix(_NAME) if name.split(".", 1)[0] == _NAME else name, *rest)


if not __package__:  # imported from this very directory, as only processes of tlaunch do
    claim_name()
