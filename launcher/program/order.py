"""Whether a module changes its environment before it imports: then imports must not be done ahead for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_CHANGING_METHODS = frozenset({"setdefault", "update", "pop", "clear", "popitem", "__setitem__"})
_CHANGING_FUNCTIONS = frozenset({"putenv", "unsetenv", "load_dotenv"})
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def changes_environment_before_imports(module: ast.Module) -> bool:
    """Also inside one function, and by calling one of the module's own functions. By the order of lines."""
    changing = _changing_functions(module)
    return any(_change_precedes_import(scope, changing) for scope in (module, *_functions(module)))


def changes_environment(module: ast.Module) -> bool:
    """When it is imported."""
    changing = _changing_functions(module)
    return any(_is_change(node, changing) for node in _inside(module))


def _functions(module: ast.Module) -> list[_Function]:
    return [node for node in ast.walk(module) if isinstance(node, _Function)]


def _changing_functions(module: ast.Module) -> set[str]:
    return {
        function.name for function in _functions(module) if any(_is_change(node, set()) for node in _inside(function))
    }


def _change_precedes_import(scope: ast.AST, changing: set[str]) -> bool:
    changes = [_line(node) for node in _inside(scope) if _is_change(node, changing)]
    imports = [_line(node) for node in _inside(scope) if isinstance(node, ast.Import | ast.ImportFrom)]
    return bool(changes and imports) and min(changes) < max(imports)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Everything that runs when the scope does: not the bodies of functions defined in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, _SCOPES):
            waiting += ast.iter_child_nodes(node)


def _is_change(node: ast.AST, changing: set[str]) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Store | ast.Del) and _is_environment(node.value)
    if isinstance(node, ast.AugAssign):
        return _is_environment(node.target)
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Attribute):
        return called.attr in _CHANGING_FUNCTIONS or (
            called.attr in _CHANGING_METHODS and _is_environment(called.value)
        )
    return isinstance(called, ast.Name) and called.id in changing | _CHANGING_FUNCTIONS


def _is_environment(node: ast.AST) -> bool:
    """`os.environ`, or `environ`, by whatever name `os` goes."""
    return getattr(node, "attr", getattr(node, "id", None)) in {"environ", "environb"}
