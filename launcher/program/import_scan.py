"""The imports of a Python program, read from its text; nothing is executed.

`modules_to_preload` follows the program as Python would run it, up to the first statement that does more than import,
define or name something: what is imported above that finds the same when it is imported ahead. Only modules that are
known to be safe to be imported before a fork are named: the heavy `ROOTS` with what is below them, and `LIBRARY`. The
program's own modules are read, not named: they may do anything when they are imported.

`uses_mpi`, `uses_mindspore` and `own_files` read every import of the program, at whatever depth.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.program.command import PythonCommand
from launcher.program.files import (
    DEFAULT_RECIPE,
    MINDSPORE,
    MPI,
    TRAINER,
    added_directory,
    files_of,
    is_of_mpi4py,
    main_file,
    roots_of,
)

_MEETING = frozenset({"init", "init_process_group"})  # functions of MindSpore after which ranks know each other
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
DYNAMO = "torch._dynamo"  # a second of CPU time, which the first optimizer or torch.compile of each rank would take
_COMPILED = ("torch.optim", "torch.compile")  # what of torch imports its compiler
MAX_FILES = 200
MAX_BYTES = 5_000_000
_SHOWING_IMPORTS = ("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")  # each rank is to show its own
_UNREADABLE = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)
# What Python evaluates without running code of the program.
_PASSIVE = (
    ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.Slice | ast.Tuple | ast.List | ast.Set | ast.Dict
    | ast.Starred | ast.JoinedStr | ast.FormattedValue | ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare
    | ast.expr_context | ast.unaryop | ast.operator | ast.boolop | ast.cmpop | ast.arguments | ast.arg
)  # fmt: skip
_METADATA = frozenset({"__all__", "__author__", "__license__", "__version__"})


def modules_to_preload(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what to import once for all ranks, in the program's order; nothing where its text does not say."""
    if (command.kind, command.target) == ("module", TRAINER):
        return trainer_modules(command.arguments)
    if any(environment.get(name) for name in _SHOWING_IMPORTS):
        return ()
    roots = roots_of(command, cwd, environment)
    scan = _TopLevel(roots)
    with suppress(*_UNREADABLE):  # Python will say what is wrong with it
        if command.kind == "code":
            scan.run(_Source(command.target, "", is_program=True))
        else:
            scan.run_files(_first_files(command, cwd, roots))
    return scan.modules()


def trainer_modules(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return what the bundled trainer with those arguments imports."""
    named = [value for option, value in pairwise(arguments) if option == "--recipe"]
    recipe = named[-1] if named else DEFAULT_RECIPE
    # The second is what a backward pass with a given gradient imports.
    return f"{TRAINER}.programs.{recipe}", "torch.fx.experimental.symbolic_shapes"


def uses_mpi(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool | None:
    """Return whether the program, or a module of its own that it imports, imports mpi4py; None where it cannot be read.

    None is the answer for `python -m package` too where that is installed: only Python could find it.

    mpi4py calls MPI_Init when it is imported, and then wants to be a process that an engine knows. The bundled trainer
    uses it only where an engine has started it.
    """
    if (command.kind, command.target) == ("module", TRAINER):
        return False
    if is_of_mpi4py(command):
        return True
    program = _WholeProgram(command, cwd, environment)
    if program.imports_mpi():
        return True
    is_of_library = command.kind == "module" and command.target.partition(".")[0] in sys.stdlib_module_names
    return False if program.is_complete or is_of_library else None


def uses_mindspore(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the program, or a module of its own that it imports, imports MindSpore and calls its `init`.

    The call is seen by its name alone: `init()`, `communication.init()`, `init_process_group()`, and what
    `from mindspore.communication import init as` calls it.
    """
    program = _WholeProgram(command, cwd, environment)
    return program.imports(MINDSPORE) and not program.called.isdisjoint(
        {*_MEETING, *program.aliases_of(MINDSPORE, _MEETING)}
    )


def own_files(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the program's own file and those of its own modules that it imports, readable or not."""
    return tuple(sorted(_WholeProgram(command, cwd, environment).files))


@frozen
class _Import:
    """`import module`, or `from module import name`; absolute."""

    module: str
    name: str = ""
    alias: str = ""  # `as alias`

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    def files(self, roots: Iterable[Path]) -> list[_File]:
        """Return the files of the program's own that it runs."""
        whole_name = f"{self.module}.{self.name}" if self.name not in {"", "*"} else self.module
        return [_File(path, package) for path, package in files_of(whole_name, roots)]


@frozen
class _File:
    """A module of the program's own."""

    path: Path
    package: str  # that it belongs to
    is_program: bool = False  # it is run as `__main__`

    def read(self) -> _Source:
        """Parse it. Raises one of `_UNREADABLE`."""
        return _Source(self.path.read_bytes(), self.package, is_program=self.is_program)


class _Source:
    """The text of a module, parsed."""

    def __init__(self, text: str | bytes, package: str, *, is_program: bool) -> None:
        with warnings.catch_warnings():  # Python will give them when it runs the program
            warnings.simplefilter("ignore")
            self.module = ast.parse(text)
        self._package = package
        self._is_program = is_program

    def is_skipped(self, node: ast.AST) -> bool:
        """Return whether this is an `if` whose body does not run."""
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                return True
            case ast.If(test=ast.Compare(ast.Name(id="__name__"), [ast.Eq()], [ast.Constant(value="__main__")])):
                return not self._is_program
        return False

    def walk(self) -> Iterator[ast.AST]:
        """Yield every node that may run, at whatever depth."""
        waiting: list[ast.AST] = [self.module]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.orelse if isinstance(node, ast.If) and self.is_skipped(node) else ast.iter_child_nodes(node)

    def imports(self, node: ast.AST) -> list[_Import]:
        """Return what a node imports; nothing unless it is such a statement."""
        match node:
            case ast.Import(names=aliases):
                return [_Import(alias.name) for alias in aliases]
            case ast.ImportFrom(module=module, names=aliases, level=level):
                # `from ..b import c` inside package a.x is a.b: each dot after the first leads one package up.
                parts = self._package.split(".")
                above = parts[: len(parts) - (level - 1)] if level else []
                absolute = ".".join(part for part in (*above, module or "") if part)
                return [_Import(absolute, alias.name, alias.asname or "") for alias in aliases]
        return []


class _TopLevel:
    """The imports that come before anything that could change what they find."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._seen: set[_File] = set()  # the program's own file is run once more where it is imported
        self._uses_compiler = self._sets_variables = False  # anywhere in the modules that were read
        self._found: dict[str, None] = {}  # in order

    def modules(self) -> tuple[str, ...]:
        """Return what was found, and torch's compiler where torch will import it; that reads variables, so none may be set."""
        with_compiler = "torch" in self._found and self._uses_compiler and not self._sets_variables
        return (*self._found, DYNAMO) if with_compiler else tuple(self._found)

    def run(self, source: _Source) -> bool:
        """Note what a module and those that it imports import; return False once a statement has ended that."""
        for node in source.walk():
            self._sets_variables |= _sets_variables(node)
            used = {f"{each.module}.{each.name}" for each in source.imports(node)}
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.add(f"{node.value.id}.{node.attr}")
            self._uses_compiler |= any(name.startswith(_COMPILED) for name in used)
        for statement in source.module.body:
            if found := source.imports(statement):
                if not all(map(self._import, found)):
                    return False
            elif not (
                _is_passive(statement) or (source.is_skipped(statement) and not getattr(statement, "orelse", ()))
            ):
                return False
        return True

    def run_files(self, files: Iterable[_File]) -> bool:
        """Do so for modules that are imported one after the other; each runs once."""
        for file in files:
            if file not in self._seen:
                self._seen.add(file)
                if len(self._seen) > MAX_FILES or not self.run(file.read()):
                    return False
        return True

    def _import(self, found: _Import) -> bool:
        if files := found.files(self._roots):
            # Modules of the library may be about to find it under that name, too.
            return found.root not in sys.stdlib_module_names and self.run_files(files)
        if found.root in ROOTS:
            self._found |= dict.fromkeys((found.root, found.module))
        elif found.root in LIBRARY:
            self._found[found.root] = None
        return True


class _WholeProgram:
    """Everything that the program may import from files of its own."""

    def __init__(self, command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> None:
        self.files: set[Path] = set()  # what was read, and what could not be
        self.called: set[str] = set()  # names of functions and methods
        self._cwd = cwd
        self._roots = roots_of(command, cwd, environment)
        # In order: where too many files are left out, all servers leave out the same.
        self._imports: dict[_Import, None] = {}
        self._waiting = deque(_first_files(command, cwd, self._roots))
        self.is_complete = command.kind == "code" or bool(self._waiting)  # there is a program, and it could be read
        if command.kind == "code":
            self._note(lambda: _Source(command.target, "", is_program=True), None)
        size_bytes = 0
        while self._waiting and len(self.files) < MAX_FILES and size_bytes < MAX_BYTES:
            file = self._waiting.popleft()
            if file.path not in self.files:
                self.files.add(file.path)
                self._note(file.read, file.path)
                with suppress(OSError):
                    size_bytes += file.path.stat().st_size

    def imports_mpi(self) -> bool:
        """Return whether it imports mpi4py, and that is no module of the program's own.

        mpi4py itself may be on PYTHONPATH: modules of clusters put it there.
        """
        own = [path for path, _ in files_of(MPI, self._roots)]
        is_own = any(path.name != "__init__.py" or not any(path.parent.glob("MPI.*")) for path in own)
        return not is_own and self.imports(MPI)

    def imports(self, package: str) -> bool:
        """Return whether it imports something of a package of that name."""
        return any(found.root == package for found in self._imports)

    def aliases_of(self, package: str, names: Collection[str]) -> set[str]:
        """Return what it calls some functions of a package where it imports them under other names."""
        return {found.alias for found in self._imports if found.root == package and found.name in names}

    def _note(self, read: Callable[[], _Source], path: Path | None) -> None:
        """Take down what one module imports, and which files those are."""
        try:
            source = read()
        except _UNREADABLE:
            self.is_complete = False
            return
        known, searched = len(self._imports), len(self._roots)
        for node in source.walk():
            self._imports |= dict.fromkeys(source.imports(node))
            match node:
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    self.called.add(name)
                case _:
                    pass
            added = added_directory(node, path, self._cwd)
            if added is not None and added not in self._roots:
                self._roots.append(added)
        # What was not found before may be in a directory that was added now.
        for found in list(self._imports)[known if len(self._roots) == searched else 0 :]:
            self._waiting += found.files(self._roots)


def _first_files(command: PythonCommand, cwd: Path, roots: list[Path]) -> list[_File]:
    """Return what Python runs first: the packages around a module, then the program's own file."""
    main = None if command.kind == "code" else main_file(command, cwd, roots)
    if main is None:
        return []
    if command.kind == "script":
        return [_File(main, "", is_program=True)]
    before = [_File(path, package) for path, package in files_of(command.target, roots) if path != main]
    package = command.target if main.name == "__main__.py" else command.target.rpartition(".")[0]
    return [*before, _File(main, package, is_program=True)]


def _is_passive(statement: ast.stmt) -> bool:
    """Return whether a statement of a module's top level can neither change nor prevent what is imported after it.

    A statement that only defines a function or names a value runs none of the program's own code: nothing is called, no
    object of a class of its own exists yet, and no name is bound that Python itself looks at (`__getattr__`, `__path__`).
    Everything else may set a variable, change the search path or touch a device, and counts as if it did.
    """
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.FunctionDef(name=name, decorator_list=[]) | ast.AsyncFunctionDef(name=name, decorator_list=[]):
            return not _is_special(name) and _calls_nothing(statement.args) and _calls_nothing(statement.returns)
        case ast.Assign(targets=targets, value=value):
            return all(map(_is_plain_name, targets)) and _calls_nothing(value)
        case ast.AnnAssign(target=target, annotation=annotation, value=named):
            return _is_plain_name(target) and _calls_nothing(annotation) and _calls_nothing(named)
    return False


def _sets_variables(node: ast.AST) -> bool:
    """Return True if the node may set a variable of the environment."""
    match node:
        case ast.Attribute(attr="putenv" | "unsetenv"):
            return True
        case ast.Subscript(value=ast.Attribute(attr="environ") | ast.Name("environ"), ctx=ast.Store() | ast.Del()):
            return True
        case ast.Attribute(value=ast.Attribute(attr="environ") | ast.Name("environ"), attr=name):
            return name in {"update", "setdefault", "pop", "popitem", "clear"}
    return False


def _calls_nothing(expression: ast.AST | None) -> bool:
    return expression is None or all(isinstance(node, _PASSIVE) for node in ast.walk(expression))


def _is_plain_name(target: ast.expr) -> bool:
    return isinstance(target, ast.Name) and not _is_special(target.id)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name not in _METADATA
