"""Find syntax errors of a Python program before it is started."""

from __future__ import annotations

import ast
import os
import re
import traceback
import warnings
from pathlib import Path

from launcher.program.program_command import PythonCommand

MAX_BYTES = 5_000_000
_MAX_COOKIE_BYTES = 1 << 16  # the first two lines
_COOKIE = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)  # see PEP 263


def error_in(command: PythonCommand, cwd: Path, interpreter: str) -> SyntaxError | None:
    """Return the syntax error in a command's `*.py` script or `-c` code, or None if none was found.

    `interpreter` is the path of the Python that runs this function. A command with another interpreter is not checked,
    since it may use another version of Python.
    """
    if os.path.realpath(command.interpreter) != os.path.realpath(interpreter):
        return None
    text: str | bytes
    try:
        if command.kind == "code":
            text = command.target
        elif command.kind == "script" and (path := cwd / command.target).suffix == ".py" and path.is_file():
            with path.open("rb") as file:
                text = file.read(MAX_BYTES + 1)
            if len(text) > MAX_BYTES:
                return None
        else:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the ranks will show the warnings
            ast.parse(text, "<string>" if command.kind == "code" else command.target)
    except SyntaxError as error:
        return error if error.lineno else _placed(error, text)
    except (OSError, ValueError, RecursionError, MemoryError):  # Python will report it
        return None
    return None


def _placed(error: SyntaxError, source: str | bytes) -> SyntaxError:
    """Add the missing line number to a SyntaxError about a null byte or an encoding comment."""
    head = source if isinstance(source, str) else source[:_MAX_COOKIE_BYTES].decode("utf-8-sig", errors="replace")
    if "null bytes" in error.msg:
        error.lineno = head.partition("\0")[0].count("\n") + 1 if "\0" in head else None
        return error
    for number, line in enumerate(head.splitlines()[:2], 1):
        if (cookie := _COOKIE.match(line)) is not None:
            error.lineno, error.text = number, line
            error.offset, error.end_offset = cookie.start(1) + 1, cookie.end(1) + 1
            break
    return error


def excerpt(error: SyntaxError) -> tuple[str, ...]:
    """Return the source line with the error and Python's `^` marker below it, or () if the line is unknown."""
    shown = "".join(traceback.format_exception_only(error)).split("\n")
    return tuple(line for line in shown[1:] if line.startswith("    "))
