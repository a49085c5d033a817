"""The statements of a module that do nothing which a later import could notice, as far as their text shows.

A statement that only defines a function or names a value runs none of the program's own code: nothing is called, no
object of a class of its own exists yet, and no name is bound that Python itself looks at (`__getattr__`, `__path__`).
Everything else may set a variable, change the search path or touch a device, and counts as if it did.
"""

from __future__ import annotations

import ast

# What Python evaluates without running code of the program.
_PASSIVE = (
    ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.Slice | ast.Tuple | ast.List | ast.Set | ast.Dict
    | ast.Starred | ast.JoinedStr | ast.FormattedValue | ast.UnaryOp | ast.BinOp | ast.BoolOp | ast.Compare
    | ast.expr_context | ast.unaryop | ast.operator | ast.boolop | ast.cmpop | ast.arguments | ast.arg
)  # fmt: skip
_METADATA = frozenset({"__all__", "__author__", "__license__", "__version__"})


def is_passive(statement: ast.stmt) -> bool:
    """Return whether a statement of a module's top level can neither change nor prevent what is imported after it."""
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


def is_for_type_checkers(node: ast.AST) -> bool:
    """Return whether this is `if TYPE_CHECKING:`, whose body never runs."""
    return isinstance(node, ast.If) and getattr(node.test, "attr", getattr(node.test, "id", "")) == "TYPE_CHECKING"


def is_for_the_program(node: ast.AST) -> bool:
    """Return whether this is `if __name__ == "__main__":`, whose body does not run in a module that is imported."""
    match node:
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")])
        ):
            return True
    return False


def sets_variables(node: ast.AST) -> bool:
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
