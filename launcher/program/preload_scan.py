"""Finds the imports of a Python program that can be made once for all ranks, in its text; nothing is executed.

The program is followed as Python would run it, up to the first statement that does more than import, define or name
something: what is imported above that finds the same when it is imported ahead. Only modules that are known to be safe to
be imported before a fork are named: the heavy `ROOTS` with what is below them, and `LIBRARY`. The program's own modules are
read, not named: they may do anything when they are imported.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from launcher.program.command import PythonCommand
from launcher.program.files import DEFAULT_RECIPE, TRAINER, roots_of, trainer_arguments
from launcher.program.source import MAX_FILES, READ_ERRORS, Import, Source, SourceFile, first_files

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
_SHOWING_IMPORTS = ("PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE")  # each rank is to show its own
# What Python evaluates without running code of the program.
_PASSIVE = (
    ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.Slice | ast.Tuple | ast.List | ast.Set | ast.Dict
    | ast.Starred | ast.JoinedStr | ast.FormattedValue | ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare
    | ast.expr_context | ast.unaryop | ast.operator | ast.boolop | ast.cmpop | ast.arguments | ast.arg
)  # fmt: skip
_METADATA = frozenset({"__all__", "__author__", "__license__", "__version__"})


def modules_to_preload(command: PythonCommand, cwd: Path, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what to import once for all ranks, in the program's order; nothing where its text does not say."""
    if (arguments := trainer_arguments(command, cwd, environment)) is not None:
        # tlaunch/_package.py: from then on `launcher` is tlaunch's package.
        return (*["_package"] * (command.kind == "script"), *trainer_modules(arguments))
    if any(environment.get(name) for name in _SHOWING_IMPORTS):
        return ()
    roots = roots_of(command, cwd, environment)
    scan = _TopLevel(roots)
    with suppress(*READ_ERRORS):  # Python will say what is wrong with it
        if command.kind == "code":
            scan.run(Source(command.target, "", is_program=True))
        else:
            scan.run_files(first_files(command, cwd, roots))
    return scan.modules()


def trainer_modules(arguments: Sequence[str]) -> tuple[str, ...]:
    """Return what the bundled trainer with those arguments imports."""
    named = [value for option, value in pairwise(arguments) if option == "--recipe"]
    recipe = named[-1] if named else DEFAULT_RECIPE
    # The second is what a backward pass with a given gradient imports.
    return f"{TRAINER}.programs.{recipe}", "torch.fx.experimental.symbolic_shapes"


class _TopLevel:
    """The imports that come before anything that could change what they find."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots
        self._seen: set[SourceFile] = set()  # the program's own file is run once more where it is imported
        self._uses_compiler = self._sets_variables = False  # anywhere in the modules that were read
        self._found: dict[str, None] = {}  # in order

    def modules(self) -> tuple[str, ...]:
        """Return what was found, and torch's compiler where torch will import it; that reads variables, so none may be set."""
        with_compiler = "torch" in self._found and self._uses_compiler and not self._sets_variables
        return (*self._found, DYNAMO) if with_compiler else tuple(self._found)

    def run(self, source: Source) -> bool:
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

    def run_files(self, files: Iterable[SourceFile]) -> bool:
        """Run the files of modules that are imported one after the other, each once; return as `run` does."""
        for file in files:
            if file not in self._seen:
                self._seen.add(file)
                if len(self._seen) > MAX_FILES or not self.run(file.read()):
                    return False
        return True

    def _import(self, found: Import) -> bool:
        if files := found.files(self._roots):
            # Modules of the library may be about to find it under that name, too.
            return found.root not in sys.stdlib_module_names and self.run_files(files)
        if found.root in ROOTS:
            self._found |= dict.fromkeys((found.root, found.module))
        elif found.root in LIBRARY:
            self._found[found.root] = None
        return True


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
