"""Which modules a Python program will import that are worth importing once, by looking at its text. Nothing is executed.

All of them where nothing in the program could change what they find when they are imported. Else those that are imported
at the start of the program, before anything runs that could do so: imported ahead, they find the same.

Only modules that are known to be safe to be imported before a fork are ever named: the heavy `ROOTS` with what is below
them, and `LIBRARY`. The program's own modules are read to find those, not named: they may do anything when they are
imported.
"""

from __future__ import annotations

import ast
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from launcher.program.command import PythonCommand
from launcher.program.files import MPI, TRAINER, files_of, is_of_mpi4py, main_file, roots_of
from launcher.program.order import Import, Searched, Source, Step, Unclear

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
MAX_FILES = 200
MAX_BYTES = 5_000_000
DYNAMO = "torch._dynamo"  # 2 s, and the first optimizer or torch.compile imports it
_NEEDS_DYNAMO = frozenset({"optim", "compile"})
_SHOWING_IMPORTS = ("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")  # somebody wants to see those of each rank
# What torch and numpy import themselves: a program's own module of such a name takes its place.
_BENEATH = frozenset(sys.stdlib_module_names) | frozenset(
    """
    filelock fsspec functorch jinja2 markupsafe mpmath networkx numpy optree packaging setuptools sympy torch torchgen
    triton typing_extensions yaml
    """.split()  # noqa: SIM905 - the same
)
_STANDARD_FILES = frozenset({"test", "this"})  # names of the library that nothing imports
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
TRAINER_MODULES = ("launcher.trainer.recipes.transformer", DYNAMO)


def modules_to_preload(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """In the order in which they should be imported; empty where nothing heavy is needed, or where nobody can tell."""
    if (command.kind, command.target) == ("module", TRAINER):
        return TRAINER_MODULES
    if any(environment.get(name) for name in _SHOWING_IMPORTS):
        return ()
    try:
        reader = _Reader(cwd, roots_of(command, cwd, environment))
        return reader.read(command)
    except _UNREADABLE:
        return ()


def uses_mpi(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool | None:
    """Whether the program, or a module of its own that it imports, imports mpi4py; None where it cannot be read.

    So is the program of `python -m package` where that is installed: where, only Python could tell.

    mpi4py calls MPI_Init when it is imported, and then wants to be a process that an engine knows. The bundled trainer
    uses it only where an engine has started it.
    """
    if (command.kind, command.target) == ("module", TRAINER):
        return False
    if is_of_mpi4py(command):
        return True
    reader = _Reader(cwd, roots_of(command, cwd, environment))
    with suppress(*_UNREADABLE):
        reader.read(command)
        if reader.has_read_program or command.target.partition(".")[0] in sys.stdlib_module_names:
            return reader.imports_mpi()
    return reader.imports_mpi() or None


def own_files(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """The program's own file, and those of its own modules that it imports; what a file that cannot be read imports is not known."""
    reader = _Reader(cwd, roots_of(command, cwd, environment), passes_over=True)
    with suppress(*_UNREADABLE):
        reader.read(command)
    return reader.files


class _Reader:
    """Reads a program as Python would run it: from its start, into each of its own modules where it is imported.

    What is imported later, by functions, is read in the end.
    """

    def __init__(self, cwd: Path, roots: list[Path], *, passes_over: bool = False) -> None:
        """`passes_over`: a file that cannot be read is left out, and the others are read nevertheless."""
        self._cwd = cwd
        self._roots = roots
        self._passes_over = passes_over
        self._all: set[str] = set()
        self._early: set[str] = set()
        self._imported: set[str] = set()  # the first parts of all names, the program's own modules too
        self._is_early = True  # nothing has run yet that could change anything
        self._may_change = False  # something could, at some time
        self._later: deque[str] = deque()  # names of modules that may be the program's own
        self._seen: set[Path] = set()
        self._bytes = 0
        self.has_read_program = False  # its own text was found

    def read(self, command: PythonCommand) -> tuple[str, ...]:
        """The modules to preload.

        Raises:
            OSError, SyntaxError, ValueError, RecursionError, MemoryError: part of the program cannot be read.
        """
        if command.kind == "code":
            self._run([iter(self._open(command.target, None, "", is_program=True))])
        else:
            main = main_file(command, self._cwd, self._roots)
            if main is None:
                return ()
            before = files_of(command.target, self._roots) if command.kind == "module" else []
            files = [(path, package) for path, package in before if path != main]
            self._run([self._steps(path, package) for path, package in files])
            self._run([self._steps(main, _package_of(command, main), is_program=True)])
        self.has_read_program = True
        while self._later:
            self._enter(self._later.popleft())
        return _in_order(self._early if self._may_change else self._all)

    @property
    def files(self) -> tuple[Path, ...]:
        """What has been read, and what could not be."""
        return tuple(sorted(self._seen))

    def imports_mpi(self) -> bool:
        """Whether `read` met an import of mpi4py, and it is not a module of the program's own."""
        return MPI in self._imported and not any(_is_own(path) for path, _ in files_of(MPI, self._roots))

    def _enter(self, name: str) -> None:
        self._run([self._steps(path, package) for path, package in files_of(name, self._roots)])

    def _run(self, running: list[Iterator[Step]]) -> None:
        """Step by step; the first is run first. What a step imports runs before the next step."""
        running.reverse()
        while running:
            step = next(running[-1], None)
            if step is None:
                running.pop()
            elif isinstance(step, Import):
                files = self._note_import(step)
                running += [self._steps(path, package) for path, package in reversed(files)]
            elif isinstance(step, Searched):
                self._note_directory(step)
            else:
                self._is_early = False

    def _steps(self, path: Path, package: str, *, is_program: bool = False) -> Iterator[Step]:
        """Of a file that has not been run yet."""
        if path in self._seen:
            return
        if len(self._seen) >= MAX_FILES or self._bytes >= MAX_BYTES:
            self._may_change = True
            yield Unclear()
            return
        self._seen.add(path)
        try:
            text = path.read_bytes()
            self._bytes += len(text)
            steps = self._open(text, path, package, is_program=is_program)
        except _UNREADABLE:
            if not self._passes_over:
                raise
            return
        yield from steps

    def _open(self, text: str | bytes, path: Path | None, package: str, *, is_program: bool) -> list[Step]:
        source = Source(text, path, package, self._cwd, is_program=is_program)
        self._may_change = self._may_change or source.mentions_change
        for node in source.walk():
            for found in source.imports(node):
                self._imported.add(found.module.partition(".")[0])
                self._all |= self._names(found)
                self._later.append(_whole_name(found))
            if isinstance(node, ast.Attribute) and node.attr in _NEEDS_DYNAMO and _is_torch(node.value):
                self._all.add(DYNAMO)
        return source.steps

    def _note_import(self, step: Import) -> list[tuple[Path, str]]:
        """The files of the program's own that it runs."""
        if self._is_early:
            self._early |= self._names(step) - {DYNAMO}  # which is imported later, by what was imported here
        files = files_of(_whole_name(step), self._roots)
        if files and step.module.partition(".")[0] in sys.stdlib_module_names:
            self._is_early = False  # functions of that name are not what they seem
        return files

    def _names(self, found: Import) -> set[str]:
        """What to preload for an import; nothing for a module of the program's own."""
        root = found.module.partition(".")[0]
        if root not in LIBRARY | {*ROOTS} or files_of(root, self._roots):
            return set()
        if root not in ROOTS:
            return {root}
        uses_dynamo = found.module.startswith("torch.optim") or (
            found.module == "torch" and found.name in _NEEDS_DYNAMO
        )
        return {root, found.module} | ({DYNAMO} if uses_dynamo else set())

    def _note_directory(self, step: Searched) -> None:
        if not step.first:
            self._roots.append(step.directory)
            return
        self._roots.insert(0, step.directory)
        if _modules_in(step.directory) & _BENEATH:
            self._is_early = False
            self._may_change = True


def _is_own(path: Path) -> bool:
    """Whether a file of mpi4py's name is the program's; the real one may be on PYTHONPATH, as modules of clusters have it."""
    return path.name != "__init__.py" or not any(path.parent.glob("MPI.*"))


def _package_of(command: PythonCommand, main: Path) -> str:
    if command.kind == "script":
        return ""
    return command.target if main.name == "__main__.py" else command.target.rpartition(".")[0]


def _modules_in(directory: Path) -> set[str]:
    """Names that can be imported from there; a directory without `__init__` gives way to a package elsewhere."""
    try:
        entries = list(directory.iterdir())
    except OSError:
        return set()
    names = {path.name.partition(".")[0] for path in entries if path.is_file() or any(path.glob("__init__.*"))}
    return names - _STANDARD_FILES


def _whole_name(found: Import) -> str:
    return f"{found.module}.{found.name}" if found.name not in {"", "*"} else found.module


def _is_torch(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in {"torch", "th"}


def _in_order(modules: set[str]) -> tuple[str, ...]:
    """The library, then packages before what is in them, the slowest addition last."""
    return tuple(sorted(modules, key=lambda name: (name not in LIBRARY, name == DYNAMO, name)))
