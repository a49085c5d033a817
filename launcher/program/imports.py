"""Which modules a Python program will import that are worth importing once, by looking at its text. Nothing is executed.

Only modules that are known to be safe to be imported before a fork are ever named: the heavy `ROOTS` with what is below
them, and `LIBRARY`. The program's own modules are read to find those, not named: they may do anything when they are
imported.
"""

from __future__ import annotations

import ast
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from launcher.program.command import PythonCommand
from launcher.program.order import changes_environment, changes_environment_before_imports

ROOTS = ("torch", "numpy")  # importing them takes long, starts no thread that outlives a fork, and opens no device
# Of the standard library, what many programs import and what takes a noticeable part of a short program's start.
LIBRARY = frozenset(
    """
    argparse ast asyncio base64 bisect collections concurrent contextlib copy csv dataclasses datetime decimal enum
    fractions functools glob gzip hashlib heapq html importlib inspect io itertools json logging math numbers operator
    pathlib pickle platform pprint queue random re shlex shutil signal socket statistics string struct subprocess
    tarfile tempfile textwrap threading traceback types typing urllib uuid weakref zipfile
    """.split()  # noqa: SIM905 - reads better
)
MOST_FILES = 200
MOST_BYTES = 5_000_000
DYNAMO = "torch._dynamo"  # 2 s, and the first optimizer or torch.compile imports it
_NEEDS_DYNAMO = frozenset({"optim", "compile"})
TRAINER = "launcher.trainer"
TRAINER_MODULES = ("launcher.trainer.recipes.transformer", DYNAMO)


@dataclass
class _Found:
    """What the files read so far need. `local`: names of modules that may be the program's own."""

    heavy: set[str] = field(default_factory=set)
    library: set[str] = field(default_factory=set)
    local: deque[str] = field(default_factory=deque)
    seen: set[Path] = field(default_factory=set)
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.seen) >= MOST_FILES or self.bytes >= MOST_BYTES


def modules_to_preload(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """In the order in which they should be imported; empty where nothing heavy is needed, or where nobody can tell.

    A program that changes its environment before imports gets none: what it imports might look at it.
    """
    if (command.kind, command.target) == ("module", TRAINER):
        return TRAINER_MODULES
    roots = _roots(command, cwd, environment)
    try:
        return _look(command, cwd, roots)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _roots(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> list[Path]:
    """Where the program's own modules may be: sys.path, as far as it is known without asking Python."""
    letters = "".join(option[1:] for option in command.options if option.startswith("-") and option[1:].isalpha())
    first = [] if set("IP") & set(letters) or environment.get("PYTHONSAFEPATH") else [cwd]
    if command.kind == "script":
        script = cwd / command.target
        first = [script] if script.is_dir() else [script.resolve().parent] if first else []
    inherited = "" if set("IE") & set(letters) else environment.get("PYTHONPATH", "")
    return first + [cwd / entry for entry in inherited.split(os.pathsep) if entry]


def _look(command: PythonCommand, cwd: Path, roots: list[Path]) -> tuple[str, ...]:
    found = _Found()
    if command.kind == "code":
        unclear = _read(command.target, "", found, is_program=True)
    else:
        main = _main_file(command, cwd, roots)
        if command.kind == "module":
            found.local.append(command.target)
        unclear = main is None or _read_file(main, _package_of(command, main), found, is_program=True)
    while found.local and not found.full and not unclear:
        name = found.local.popleft()
        files = _files_of(name, roots)
        unclear = any(_read_file(path, package, found) for path, package in files)
        if not files and (root := name.partition(".")[0]) in LIBRARY:
            found.library.add(root)
    return () if unclear else (*sorted(found.library), *_in_order(found.heavy))


def _main_file(command: PythonCommand, cwd: Path, roots: list[Path]) -> Path | None:
    if command.kind == "script":
        script = cwd / command.target
        return script / "__main__.py" if script.is_dir() else script
    files = [path for path, _ in _files_of(command.target, roots)]
    if files and files[-1].name == "__init__.py":
        return files[-1].with_name("__main__.py")
    return files[-1] if files and files[-1].stem == command.target.rpartition(".")[2] else None


def _package_of(command: PythonCommand, main: Path) -> str:
    if command.kind == "script":
        return ""
    return command.target if main.name == "__main__.py" else command.target.rpartition(".")[0]


def _files_of(name: str, roots: Iterable[Path]) -> list[tuple[Path, str]]:
    """The files that `import name` runs, with the package that each belongs to; empty if it is not the program's own.

    A name that is no module itself (`from package import name`) leads to its package.
    """
    parts = name.split(".")
    for root in roots:
        files: list[tuple[Path, str]] = []
        for count in range(1, len(parts) + 1):
            place = root.joinpath(*parts[:count])
            if (place / "__init__.py").is_file():
                files.append((place / "__init__.py", ".".join(parts[:count])))
            elif place.with_name(place.name + ".py").is_file():
                files.append((place.with_name(place.name + ".py"), ".".join(parts[: count - 1])))
        if files:
            return files
    return []


def _read_file(path: Path, package: str, found: _Found, *, is_program: bool = False) -> bool:
    """As `_read`; a file read already tells nothing more."""
    if path in found.seen or found.full:
        return False
    found.seen.add(path)
    source = path.read_bytes()
    found.bytes += len(source)
    return _read(source, package, found, is_program=is_program)


def _read(source: str | bytes, package: str, found: _Found, *, is_program: bool) -> bool:
    """Note what a module imports; whether it leaves unclear what may be imported before it runs.

    The program itself may change its environment after its imports; what it imports may be followed by more of them.
    """
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in _imported(node, package):
            _note(name, found)
        if isinstance(node, ast.Attribute) and node.attr in _NEEDS_DYNAMO and _is_torch(node.value):
            found.heavy.add(DYNAMO)
    return changes_environment_before_imports(tree) or (not is_program and changes_environment(tree))


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"torch", "th"}


def _imported(node: ast.AST, package: str) -> Iterator[tuple[str, str]]:
    """Module, and name taken from it (or ""), for everything that a statement imports."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, "") for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        module = _absolute(node.module or "", node.level, package)
        yield from ((module, alias.name) for alias in node.names)


def _absolute(module: str, level: int, package: str) -> str:
    """`from ..b import c` inside package a.x is a.b: each dot after the first leads one package up."""
    if level == 0:
        return module
    parts = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join(part for part in (*parts, module) if part)


def _note(imported: tuple[str, str], found: _Found) -> None:
    module, name = imported
    root = module.partition(".")[0]
    if root not in ROOTS:
        found.local.append(f"{module}.{name}" if name and name != "*" else module)
        return
    found.heavy |= {root, module}
    if root == "torch" and (module.startswith("torch.optim") or (module == "torch" and name in _NEEDS_DYNAMO)):
        found.heavy.add(DYNAMO)


def _in_order(modules: set[str]) -> tuple[str, ...]:
    """Packages before what is in them, the slowest addition last."""
    return tuple(sorted(modules, key=lambda name: (name == DYNAMO, name)))
