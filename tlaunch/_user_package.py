"""Access to tlaunch's package in a user's program, which may have a different package `launcher`.

The name `launcher` belongs to the program. Therefore `package_for` may return a copy of tlaunch's package under another
name. In modules of the copy, `from launcher import ...` refers to the copy.
"""

from __future__ import annotations

import builtins
import os
import sys
from _frozen_importlib_external import PathFinder, SourceFileLoader

from tlaunch._package import FILE, NAME, load

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_COPY = "_tlaunch_launcher"  # also used in launcher/__init__.py
# A script may import these and add the directory of its own `launcher` to sys.path later. They share no state.
_FROM_COPY = frozenset({"__version__", "beat", "metric"})


def package_for(name: str) -> ModuleType:
    """Return the package, tlaunch's or the copy, that provides `name`."""
    found = sys.modules.get(NAME)
    if found is not None and _is_ours(found.__file__):
        return found
    if found is None and name not in _FROM_COPY:
        spec = PathFinder.find_spec(NAME)
        if spec is not None and _is_ours(spec.origin):
            return __import__(NAME)
    if _COPY not in sys.modules:
        sys.meta_path.insert(0, _Finder)
        load(_COPY, _Loader)
    return sys.modules[_COPY]


def _is_ours(file: str | None) -> bool:
    return file is not None and os.path.realpath(file) == os.path.realpath(FILE)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(_COPY + "."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


def _import(name: str, *rest: Any) -> Any:
    """Perform an import statement in a module of the copy."""
    return __import__(_COPY + name.removeprefix(NAME) if name.split(".", 1)[0] == NAME else name, *rest)
