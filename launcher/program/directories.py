"""Which directory an expression of a module names: `os.path.join(os.path.dirname(__file__), "..")` and its like."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable
from pathlib import Path

from launcher.program.effects import Names

# Each works on the text of a path alone, or looks at links. The working directory is the program's.
_FUNCTIONS: dict[str, Callable[..., str]] = {
    "os.path.dirname": os.path.dirname,
    "os.path.join": os.path.join,
    "os.path.normpath": os.path.normpath,
    "os.path.abspath": os.path.abspath,
    "os.path.realpath": os.path.realpath,
    "pathlib.Path": os.path.join,
    "builtins.str": str,
    "os.fspath": str,
}
_METHODS: dict[str, Callable[..., str]] = {
    "resolve": os.path.realpath,
    "absolute": os.path.abspath,
    "as_posix": str,
    "joinpath": os.path.join,
    "__str__": str,
}
_FROM_CWD = frozenset({os.path.abspath, os.path.realpath})
_CONSTANTS = {"os.pardir": "..", "os.curdir": "."}


class Directories:
    """Knows `__file__`, and names that were given such a value. A path without a beginning is the working directory's."""

    def __init__(self, names: Names, file: Path | None, cwd: Path) -> None:
        self._names = names
        self._cwd = str(cwd)
        self._values: dict[str, str | None] = {"__file__": None if file is None else str(file)}

    def note(self, name: str, value: ast.expr | None) -> None:
        """`name` is given this value; None: any. Given two values, it may have either."""
        self._values[name] = None if value is None or name in self._values else self._text(value)

    def find(self, expression: ast.expr) -> Path | None:
        """None where it cannot be worked out."""
        text = self._text(expression)
        return None if text is None else Path(os.path.join(self._cwd, text))  # noqa: PTH118 - as Python does

    def _text(self, node: ast.expr) -> str | None:  # noqa: PLR0911 - one for each form
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.Name(id=name):
                return self._values.get(name)
            case ast.Attribute(value=path, attr="parent"):
                return self._parent(path, 1)
            case ast.Attribute():
                return _CONSTANTS.get(self._names.meaning(node))
            case ast.Subscript(value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int(index))):
                return self._parent(path, index + 1) if index >= 0 else None
            case ast.BinOp(left=left, op=ast.Div(), right=right):
                return self._apply(os.path.join, [left, right])
            case ast.Call(keywords=[]):
                return self._call(node)
        return None

    def _parent(self, path: ast.expr, levels: int) -> str | None:
        text = self._text(path)
        for _ in range(levels):
            text = None if text is None else str(Path(text).parent)
        return text

    def _call(self, call: ast.Call) -> str | None:
        meaning = self._names.meaning(call.func)
        if meaning in {"os.getcwd", "pathlib.Path.cwd"} and not call.args:
            return self._cwd
        if meaning in _FUNCTIONS and call.args:
            return self._apply(_FUNCTIONS[meaning], call.args)
        if isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS:
            return self._apply(_METHODS[call.func.attr], [call.func.value, *call.args])
        return None

    def _apply(self, function: Callable[..., str], arguments: list[ast.expr]) -> str | None:
        texts = [self._text(argument) for argument in arguments]
        known = [text for text in texts if text is not None]
        if len(known) < len(texts):
            return None
        try:
            return function(*(self._absolute(text) if function in _FROM_CWD else text for text in known))
        except (TypeError, ValueError):
            return None

    def _absolute(self, text: str) -> str:
        return os.path.join(self._cwd, text)  # noqa: PTH118 - a Path would tidy it up
