"""Parse a program's modules to find their imports and the program's own files that these run. Executes nothing."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.core.regular_files import read_regular
from launcher.program.program_command import PythonCommand
from launcher.program.program_files import MAX_BYTES, files_of, main_file

MAX_FILES = 200  # limit for one program
READ_ERRORS = (OSError, SyntaxError, ValueError, RecursionError, MemoryError)


@frozen
class Import:
    """`import module` or `from module import name`, as an absolute name."""

    module: str
    name: str = ""
    alias: str = ""  # as in `as alias`

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    def files(self, roots: Iterable[Path]) -> list[SourceFile]:
        whole_name = f"{self.module}.{self.name}" if self.name not in {"", "*"} else self.module
        return [SourceFile(path, package) for path, package in files_of(whole_name, roots)]


@frozen
class SourceFile:
    path: Path
    package: str  # its parent package
    is_program: bool = False  # True for `__main__`

    def read(self) -> Source:
        """Return the parsed source of the module. Raises one of `READ_ERRORS` if this fails."""
        return Source(read_regular(self.path, MAX_BYTES), self.package, is_program=self.is_program)


class Source:
    def __init__(self, text: str | bytes, package: str, *, is_program: bool) -> None:
        with warnings.catch_warnings():  # Python will show the warnings when it runs the program
            warnings.simplefilter("ignore")
            self.module = ast.parse(text)
        self._package = package
        self._is_program = is_program

    def is_skipped(self, node: ast.AST) -> bool:
        """Return True for an `if` whose body never runs, such as `if TYPE_CHECKING`."""
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
                return True
            case ast.If(test=ast.Compare(ast.Name(id="__name__"), [ast.Eq()], [ast.Constant(value="__main__")])):
                return not self._is_program
        return False

    def walk(self) -> Iterator[ast.AST]:
        waiting: list[ast.AST] = [self.module]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.orelse if isinstance(node, ast.If) and self.is_skipped(node) else ast.iter_child_nodes(node)

    def imports(self, node: ast.AST) -> list[Import]:
        match node:
            case ast.Import(names=aliases):
                return [Import(alias.name) for alias in aliases]
            case ast.ImportFrom(module=module, names=aliases, level=level):
                # `from ..b import c` inside package a.x is a.b: each dot after the first goes up one package.
                parts = self._package.split(".")
                above = parts[: len(parts) - (level - 1)] if level else []
                absolute = ".".join(part for part in (*above, module or "") if part)
                return [Import(absolute, alias.name, alias.asname or "") for alias in aliases]
        return []


def first_files(command: PythonCommand, cwd: Path, roots: list[Path]) -> list[SourceFile]:
    """Return the files that Python runs first: the parent packages of a `-m` module, then the program's own file."""
    main = None if command.kind == "code" else main_file(command, cwd, roots)
    if main is None:
        return []
    if command.kind == "script":
        return [SourceFile(main, "", is_program=True)]
    before = [SourceFile(path, package) for path, package in files_of(command.target, roots) if path != main]
    package = command.target if main.name == "__main__.py" else command.target.rpartition(".")[0]
    return [*before, SourceFile(main, package, is_program=True)]
