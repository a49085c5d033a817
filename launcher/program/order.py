"""What importing a module does, one step after the other, as far as its text tells."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from launcher.core.frozen import frozen
from launcher.program.directories import Directories
from launcher.program.effects import Names, is_harmless, is_unread_variable, mentions_change

# Functions that run without being called by name.
_OF_MODULES = frozenset({"__getattr__", "__dir__"})
_OF_CLASSES = frozenset({"__init_subclass__", "__class_getitem__", "__prepare__", "__set_name__"})
_OF_ENUMERATIONS = _OF_CLASSES | {"__init__", "__new__", "_generate_next_value_"}
_METACLASSES = frozenset({"abc.ABCMeta", "enum.EnumMeta", "enum.EnumType"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@frozen
class Import:
    """`import module`, or `from module import name`; absolute."""

    module: str
    name: str = ""


@frozen
class Searched:
    """A directory is added to the search path."""

    directory: Path
    first: bool  # before all others, else behind them


@frozen
class Unclear:
    """Something runs that may do anything."""


Step = Import | Searched | Unclear


class Source:
    """The text of one module, without what only type checkers see, and what only runs if it is the program.

    Raises (`__init__`):
        SyntaxError, ValueError, RecursionError, MemoryError: it cannot be parsed.
    """

    def __init__(self, text: str | bytes, file: Path | None, package: str, cwd: Path, *, is_program: bool) -> None:
        self._module = _Living(is_program=is_program).visit(_parse(text))
        self._package = package
        self._names = Names(self._module)
        self._directories = Directories(self._names, file, cwd)
        self._known: set[ast.AST] = set()
        self._uncalled = _OF_MODULES
        self._steps = list(self._block(self._module.body))

    @property
    def steps(self) -> list[Step]:
        """Of its top level, in order; what comes after Unclear is there too."""
        return self._steps

    def walk(self) -> Iterator[ast.AST]:
        """Everything in it, at whatever depth."""
        return ast.walk(self._module)

    def imports(self, node: ast.AST) -> Iterator[Import]:
        """What a node imports, if it is such a statement."""
        if isinstance(node, ast.Import):
            yield from (Import(alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node.module or "", node.level, self._package)
            yield from (Import(module, alias.name) for alias in node.names)

    @property
    def mentions_change(self) -> bool:
        """Whether anything in it could change what later imports find or read, apart from its `steps`."""
        return mentions_change(self._module, self._names, self._known)

    # --- the steps ---

    def _block(self, statements: Iterable[ast.stmt]) -> Iterator[Step]:
        for statement in statements:
            yield from self._statement(statement)

    def _statement(self, statement: ast.stmt) -> Iterator[Step]:  # noqa: PLR0912, C901 - one line for each kind
        match statement:
            case ast.Import() | ast.ImportFrom():
                yield from self.imports(statement)
            case ast.Expr(value=value):
                yield from self._expression(value)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                yield from self._assignment(statement)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from self._function(statement)
            case ast.ClassDef():
                yield from self._class(statement)
            case ast.If(test=test, body=body, orelse=otherwise) | ast.While(test=test, body=body, orelse=otherwise):
                yield from self._evaluate(test)
                yield from self._block([*body, *otherwise])
            case ast.For(target=target, iter=looped, body=body, orelse=otherwise):
                yield from self._evaluate(looped)
                yield from self._bind(target)
                yield from self._block([*body, *otherwise])
            case ast.With(items=items, body=body):
                for item in items:
                    yield from self._evaluate(item.context_expr)
                    yield from self._bind(item.optional_vars)
                yield from self._block(body)
            case ast.Try(body=body, handlers=handlers, orelse=otherwise, finalbody=final):
                handled = [inner for handler in handlers for inner in handler.body]
                yield from self._block([*body, *handled, *otherwise, *final])
            case ast.Assert() | ast.Raise():
                yield from self._evaluate(statement)
            case ast.Delete(targets=targets):
                for target in targets:
                    yield from self._bind(target)
            case ast.Pass() | ast.Break() | ast.Continue() | ast.Global():
                pass
            case _:
                yield Unclear()

    def _evaluate(self, *expressions: ast.AST | None) -> Iterator[Step]:
        if not all(is_harmless(expression, self._names) for expression in expressions):
            yield Unclear()

    def _expression(self, value: ast.expr) -> Iterator[Step]:
        added = self._addition(value)
        if added is not None:
            yield added
        else:
            yield from self._evaluate(*_arguments_of_default(value) or [value])

    def _assignment(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[Step]:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from self._evaluate(statement.value)
        if isinstance(statement, ast.AnnAssign):
            yield from self._evaluate(statement.annotation)
        if isinstance(statement, ast.AugAssign) and getattr(statement.target, "id", "") != "__all__":
            yield Unclear()  # it may change what another name stands for too
        for target in targets:
            if isinstance(target, ast.Name) and target.id in self._uncalled:
                yield Unclear()
            elif isinstance(target, ast.Name) and not isinstance(statement, ast.AugAssign):
                self._directories.note(target.id, statement.value)
            else:
                yield from self._bind(target)

    def _bind(self, target: ast.AST | None) -> Iterator[Step]:
        """A name may have any value; what is part of something else may belong to anybody."""
        if isinstance(target, ast.Tuple | ast.List):
            for each in target.elts:
                yield from self._bind(each)
        elif isinstance(target, ast.Name):
            self._directories.note(target.id, None)
        elif target is not None and not is_unread_variable(target):
            yield Unclear()

    def _function(self, function: _Function) -> Iterator[Step]:
        if function.name in self._uncalled or not all(map(self._is_harmless_decorator, function.decorator_list)):
            yield Unclear()
        yield from self._evaluate(function.args, function.returns)

    def _class(self, defined: ast.ClassDef) -> Iterator[Step]:
        if not all(map(self._is_harmless_decorator, defined.decorator_list)):
            yield Unclear()
        yield from self._evaluate(*defined.bases)
        if any(self._names.meaning(keyword.value) not in _METACLASSES for keyword in defined.keywords):
            yield Unclear()
        makes_members = any(self._names.meaning(base).startswith("enum.") for base in defined.bases)
        outside, self._uncalled = self._uncalled, _OF_ENUMERATIONS if makes_members else _OF_CLASSES
        yield from self._block(defined.body)
        self._uncalled = outside

    def _is_harmless_decorator(self, decorator: ast.expr) -> bool:
        """It is called, even where it stands without parentheses. `@value.setter` is of a property."""
        if isinstance(decorator, ast.Attribute) and decorator.attr in {"setter", "getter", "deleter"}:
            return isinstance(decorator.value, ast.Name)
        called = decorator if isinstance(decorator, ast.Call) else ast.Call(func=decorator, args=[], keywords=[])
        return is_harmless(called, self._names)

    def _addition(self, value: ast.expr) -> Searched | None:
        """`sys.path.insert(0, DIRECTORY)` and `sys.path.append(DIRECTORY)`, where the directory can be worked out."""
        match value:
            case ast.Call(func=ast.Attribute(value=path, attr="insert"), args=[ast.Constant(), directory], keywords=[]):
                first = True
            case ast.Call(func=ast.Attribute(value=path, attr="append"), args=[directory], keywords=[]):
                first = False
            case _:
                return None
        found = self._directories.find(directory) if self._names.meaning(path) == "sys.path" else None
        if found is None:
            return None
        self._known.add(path)
        return Searched(found, first)


class _Living(ast.NodeTransformer):
    """Takes away what does not run."""

    def __init__(self, *, is_program: bool) -> None:
        self._is_program = is_program

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        dead = _is_type_checking(node.test) or (not self._is_program and _asks_for_program(node.test))
        if not dead:
            return self.generic_visit(node)
        kept = [self.visit(statement) for statement in node.orelse]
        return [each for one in kept for each in (one if isinstance(one, list) else [one])]


def _parse(text: str | bytes) -> ast.Module:
    """What Python has to say about the text it will say itself."""
    import warnings  # noqa: PLC0415 - not needed for programs that are not looked into

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "attr", getattr(test, "id", None)) == "TYPE_CHECKING"


def _asks_for_program(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
    return False


def _arguments_of_default(value: ast.expr) -> list[ast.expr]:
    """Of `os.environ.setdefault("MASTER_ADDR", ...)`; empty for everything else."""
    match value:
        case ast.Call(func=ast.Attribute(value=owner, attr="setdefault"), args=arguments, keywords=[]) if arguments:
            return arguments if is_unread_variable(ast.Subscript(value=owner, slice=arguments[0])) else []
    return []


def _absolute(module: str, level: int, package: str) -> str:
    """`from ..b import c` inside package a.x is a.b: each dot after the first leads one package up."""
    if level == 0:
        return module
    parts = package.split(".")[: len(package.split(".")) - (level - 1)]
    return ".".join(part for part in (*parts, module) if part)
