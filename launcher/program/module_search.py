"""Check whether `python -m NAME` finds its module, with Python's own finders. They look for files and import nothing."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import FileFinder, ModuleSpec, PathFinder
from pathlib import Path

from launcher.program.program_command import PythonCommand
from launcher.program.program_files import roots_of

MAX_BYTES = 1_000_000
# Words in a module that may redirect imports away from the files below it.
_FINDING = (b"__path__", b"sys.modules", b"meta_path", b"path_hooks")
_CUSTOMIZING = ("sitecustomize", "usercustomize")  # Python imports these at startup; they may add search paths
# Settings of the search path.
_DECIDING = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "HOME")


def missing_module(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> str | None:
    """Return the first name that `python -m` would not find: the module, a parent package, or a package's `__main__`.

    Returns None if all are found, or if the search is uncertain: the command uses another interpreter, or a package may
    change where its modules are found.
    """
    if command.kind != "module" or not _looks_as_this_python(command, environment):
        return None
    roots = [str(root) for root in roots_of(command, cwd, environment)]
    if any(PathFinder.find_spec(name, roots) for name in _CUSTOMIZING):
        return None
    if not all(parts := command.target.split(".")):
        return command.target
    for root in roots:
        if isinstance(finder := sys.path_importer_cache.get(root), FileFinder):
            finder.invalidate_caches()  # a file may have been written just now
    try:
        return _first_missing(parts, [*roots, *sys.path])
    except Exception:  # noqa: BLE001 - finders can be arbitrary code; Python will report the error
        return None


def _looks_as_this_python(command: PythonCommand, environment: Mapping[str, str]) -> bool:
    """Return True if this Python searches every directory in which the command's Python looks for packages."""
    flags = sys.flags
    if flags.isolated or flags.ignore_environment or flags.no_site or flags.no_user_site:
        return False
    if any(environment.get(name) != os.environ.get(name) for name in _DECIDING):
        return False
    theirs, ours = Path(command.interpreter), Path(sys.executable)
    # Virtual environments share the executable; the directory of the link distinguishes them.
    return theirs.resolve() == ours.resolve() and theirs.parent.resolve() == ours.parent.resolve()


def _first_missing(parts: Sequence[str], search: list[str]) -> str | None:
    name, around, spec = "", list[ModuleSpec](), None
    for part in (*parts, "__main__"):
        if spec is not None and spec.submodule_search_locations is None:  # it is a module
            return None if name == ".".join(parts) else _if_own_directory(f"{name}.{part}", [*around, spec])
        if spec is not None:
            around.append(spec)
            search = list(spec.submodule_search_locations or ())
        name = f"{name}.{part}" if name else part
        paths = ((finder, search if "." in name or finder is PathFinder else None) for finder in sys.meta_path)
        spec = next(filter(None, (finder.find_spec(name, path) for finder, path in paths)), None)
        if spec is None:
            return _if_own_directory(name, around)
    return None


def _if_own_directory(name: str, around: Sequence[ModuleSpec]) -> str | None:
    """Return `name` if this module is certainly missing, or None if a package in `around` may find it elsewhere."""
    for package in around:
        if package.origin is None:  # a directory without `__init__.py`
            continue
        if not package.origin.endswith(".py"):
            return None
        with Path(package.origin).open("rb") as file:
            text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES or any(word in text for word in _FINDING):
            return None
        if package.submodule_search_locations is not None and any(map(_acts, ast.parse(text).body)):
            return None
    return name


def _acts(statement: ast.stmt) -> bool:
    """Return True if this statement of an `__init__.py` may have side effects, such as adding import hooks."""
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return bool(statement.decorator_list)
        case ast.Import():
            return any(alias.name.partition(".")[0] not in sys.stdlib_module_names for alias in statement.names)
        case ast.ImportFrom(module=str(module), level=0):
            return module.partition(".")[0] not in sys.stdlib_module_names
        case ast.Assign() | ast.AnnAssign() | ast.Expr() | ast.Pass():
            return any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))
    return True
