"""Find the modules that a program imports and that one process can import before it forks the ranks. Executes nothing.

The scan follows the source as Python would run it, up to the first statement that does more than import, define or
assign. Imports above that statement give the same result when they are done earlier. Only modules that are safe to
import before a fork are returned: the heavy `ROOTS` with their submodules, and `LIBRARY`. The program's own modules are
read but not returned, since importing them may do anything.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from launcher.program.program_command import PythonCommand
from launcher.program.program_files import DEFAULT_RECIPE, TRAINER, roots_of, trainer_arguments
from launcher.program.source import MAX_FILES, READ_ERRORS, Import, Source, SourceFile, first_files

ROOTS = ("torch", "numpy")  # slow to import, but no threads that outlive a fork and no open devices
# Modules of the standard library that many programs import and that take a noticeable part of a short program's start.
LIBRARY = frozenset(
    """
    argparse ast asyncio base64 bisect collections concurrent contextlib copy csv dataclasses datetime decimal enum
    fractions functools glob gzip hashlib heapq html importlib inspect io itertools json logging math numbers operator
    pathlib pickle platform pprint queue random re shlex shutil signal socket statistics string struct subprocess
    tarfile tempfile textwrap threading traceback types typing urllib uuid weakref zipfile
    """.split()  # noqa: SIM905 - reads better
)
DYNAMO = "torch._dynamo"  # one second of CPU time, which each rank's first optimizer or torch.compile would need
_COMPILED = ("torch.optim", "torch.compile")  # the parts of torch that import its compiler
_SHOWING_IMPORTS = ("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")  # every rank must show its own warnings
# Nodes that Python evaluates without running code of the program.
_PASSIVE = (
    ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.Slice | ast.Tuple | ast.List | ast.Set | ast.Dict
    | ast.Starred | ast.JoinedStr | ast.FormattedValue | ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare
    | ast.expr_context | ast.unaryop | ast.operator | ast.boolop | ast.cmpop | ast.arguments | ast.arg
)  # fmt: skip
_METADATA = frozenset({"__all__", "__author__", "__license__", "__version__"})


def modules_to_preload(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the modules that are safe to import before ranks are forked, in the order of the program's imports."""
    if (arguments := trainer_arguments(command, cwd, environment)) is not None:
        # tlaunch/_package.py: afterwards `launcher` is tlaunch's package.
        return (*["_package"] * (command.kind == "script"), *trainer_modules(arguments))
    if any(environment.get(name) for name in _SHOWING_IMPORTS):
        return ()
    roots = roots_of(command, cwd, environment)
    scan = _TopLevel(roots)
    with suppress(*READ_ERRORS):  # Python will report the error
        if command.kind == "code":
            scan.run(Source(command.target, "", is_program=True))
        else:
            scan.run_files(first_files(command, cwd, roots))
    return scan.modules()


def trainer_modules(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the modules to preload if the bundled trainer is run with these arguments."""
    named = [value for option, value in pairwise(arguments) if option == "--recipe"]
    recipe = named[-1] if named else DEFAULT_RECIPE
    # The second is imported by a backward pass with a given gradient.
    return f"{TRAINER}.programs.{recipe}", "torch.fx.experimental.symbolic_shapes"


class _TopLevel:
    """Collects a program's imports up to the first statement that could change their result."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._seen: set[SourceFile] = set()  # importing the program's own file runs it a second time
        self._uses_compiler = self._sets_variables = False  # anywhere in the modules read so far
        self._found: dict[str, None] = {}  # in order

    def modules(self) -> tuple[str, ...]:
        """Return the modules found, plus `DYNAMO` if the program uses torch's compiler and sets no environment variable."""
        with_compiler = "torch" in self._found and self._uses_compiler and not self._sets_variables
        return (*self._found, DYNAMO) if with_compiler else tuple(self._found)

    def run(self, source: Source) -> bool:
        """Collect the imports of `source` and of the modules it imports. Return False if a statement ended the scan."""
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

    def run_files(self, files: Iterable[SourceFile]) -> bool:
        """Scan each file once, in order. Return False if a statement or the limit of files ended the scan."""
        for file in files:
            if file not in self._seen:
                self._seen.add(file)
                if len(self._seen) > MAX_FILES or not self.run(file.read()):
                    return False
        return True

    def _import(self, found: Import) -> bool:
        if files := found.files(self._roots):
            # Modules of the library may later find it under that name.
            return found.root not in sys.stdlib_module_names and self.run_files(files)
        if found.root in ROOTS:
            self._found |= dict.fromkeys((found.root, found.module))
        elif found.root in LIBRARY:
            self._found[found.root] = None
        return True


def _is_passive(statement: ast.stmt) -> bool:
    """Return True if a top-level statement cannot change or prevent the imports that follow it.

    A statement that only defines a function or assigns a name runs no code of the program: it calls nothing, no object
    of the program's classes exists yet, and it binds no name that Python itself uses (`__getattr__`, `__path__`). Any
    other statement may set a variable, change the search path or use a device, so it is assumed to.
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
