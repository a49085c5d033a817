"""Parse the command line of a Python program as Python itself does: interpreter, options, program, arguments.

A command line is parsed only if it can be imitated exactly. Otherwise the result is None, and the command is started
unchanged.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from launcher.core.frozen import frozen

Kind = Literal["script", "module", "code"]
_PYTHON = re.compile(r"python(3(\.\d+t?)?)?")
_FLAGS = frozenset("bBdEIOPqRsStu")  # without a value; unsupported: -i, -h, -V, -x, and -v, which prints too much
_LONG_OPTION = "--check-hash-based-pycs"  # the only long option after which a program still runs
_PROGRAM_KINDS: dict[str, Kind] = {"m": "module", "c": "code"}
SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
_MAX_SHEBANG_BYTES = 256  # the part of a `#!` line that Linux reads


@frozen
class PythonCommand:
    """A parsed Python command: `interpreter options target arguments`."""

    interpreter: str  # absolute, links not resolved: a virtual environment's python is itself a link
    options: tuple[str, ...]  # options of the interpreter with their values: ("-u", "-W", "error")
    kind: Kind
    target: str  # a file, directory or zip as typed, a module name, or source code
    arguments: tuple[str, ...]
    name: str = ""  # the interpreter's argv[0] as typed; Python shows it in messages and uses it to locate itself


def parse_python(argv: Sequence[str], search_path: str | None, cwd: Path) -> PythonCommand | None:
    """Parse a command that runs Python directly, with `env` or by a script's `#!` line, or return None for others."""
    words = _without_env(list(argv))
    if not words:
        return None
    found = _find(words[0], search_path, cwd)
    if found is None:
        return None
    if is_python(words[0]):
        return _parse(found, words)
    # For a script that is executed directly: its `#!` line, as the kernel and `env` read it.
    before = _without_env(_shebang(found))
    interpreter = _find(before[0], search_path, cwd) if before and is_python(before[0]) else None
    if interpreter is None:
        return None
    typed = words[0] if "/" in words[0] else found  # a script found on PATH is passed to Python with its directory
    return _parse(interpreter, [*before, typed, *words[1:]])


def missing_interpreter(script: Path, search_path: str | None, cwd: Path) -> str | None:
    """Return the interpreter in a script's `#!` line if it does not exist, or None if there is no problem."""
    line = os.fsdecode(_first_line(script))
    if not line.startswith("#!") or not (words := line[2:].strip(" \t")):
        return None
    interpreter, _, rest = words.replace("\t", " ").partition(" ")
    if not (cwd / interpreter).exists():
        return interpreter
    command = rest.strip(" ")
    if os.path.basename(interpreter) != "env" or not command:  # noqa: PTH119
        return None
    if command.startswith("-S "):
        command = command[3:].lstrip(" ").partition(" ")[0]
    if command.startswith("-") or set(command) & set("=$\\'\""):
        return None
    return command if _find(command, search_path, cwd) is None else None


def has_no_shebang(script: Path) -> bool:
    """Return True if a file is text without a `#!` line, so that the kernel cannot execute the file."""
    beginning = _beginning(script)
    # Machine code of any processor contains zeros.
    return beginning is not None and not beginning.startswith(b"#!") and b"\0" not in beginning


def is_python(word: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(word)) is not None  # noqa: PTH119 - a Path would normalise it


def program_file(argv: Sequence[str], search_path: str | None, cwd: Path) -> Path | None:
    """Return the executable that `argv` would run, ignoring a leading `env`, or None if it is not found."""
    words = _without_env(list(argv))
    found = _find(words[0], search_path, cwd) if words else None
    return None if found is None else Path(found)


def _without_env(words: list[str]) -> list[str]:
    """Remove a leading `env`. Return an empty command if `env` has options or sets variables."""
    if words[:1] in (["env"], ["/usr/bin/env"], ["/bin/env"]):
        return words[1:] if len(words) > 1 and not words[1].startswith("-") and "=" not in words[1] else []
    return words


def _find(word: str, search_path: str | None, cwd: Path) -> str | None:
    """Return the absolute path of the executable that exec would run, or None. Links are not resolved."""
    directories = [""] if "/" in word else (search_path or os.defpath).split(os.pathsep)
    for directory in directories:
        path = os.path.join(cwd, directory, word)  # noqa: PTH118 - a Path would normalise it
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113 - the same
            return path
    return None


def _beginning(script: Path) -> bytes | None:
    with suppress(OSError), script.open("rb") as file:
        return file.read(_MAX_SHEBANG_BYTES)
    return None


def _first_line(script: Path) -> bytes:
    """Return a file's first line, or b"" if the file is unreadable or the line is too long for a `#!` line."""
    line = (_beginning(script) or b"").split(b"\n")[0]
    return b"" if len(line) == _MAX_SHEBANG_BYTES else line


def _shebang(script: str) -> list[str]:
    """Return the words of a script's `#!` line, or [] if the line is missing or cannot be parsed safely."""
    line = _first_line(Path(script))
    if not line.startswith(b"#!"):
        return []
    words = os.fsdecode(line[2:]).split()
    if words[1:2] == ["-S"] and os.path.basename(words[0]) == "env":  # noqa: PTH119
        return [] if any(set(word) & set("$\\'\"#") for word in words) else [words[0], *words[2:]]
    return words if len(words) <= 2 else []  # the kernel passes the rest of the line as one argument


def _parse(interpreter: str, words: list[str]) -> PythonCommand | None:
    options: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--":
            return _script(interpreter, options, next(rest, ""), rest, words[0])
        if word == _LONG_OPTION:
            options += [word, next(rest, "")]
        elif not word.startswith("-"):
            return _script(interpreter, options, word, rest, words[0])
        else:
            letter, value = _read_cluster(word, rest, options)
            if letter in _PROGRAM_KINDS and value is not None:
                kind = _PROGRAM_KINDS[letter]
                return PythonCommand(interpreter, tuple(options), kind, value, tuple(rest), words[0])
            if letter or value is not None:
                return None
    return None  # an interactive session, or a program on stdin


def _script(
    interpreter: str, options: list[str], target: str, arguments: Iterator[str], name: str
) -> PythonCommand | None:
    if target in {"", "-"}:
        return None
    return PythonCommand(interpreter, tuple(options), "script", target, tuple(arguments), name)


def _read_cluster(word: str, rest: Iterator[str], options: list[str]) -> tuple[str, str | None]:
    """Parse an argument with one or several options, such as `-uW error`, and add them to `options`.

    Returns ("m" or "c", value) for the program, ("", None) if there are only options, and ("?", None) for an error.
    """
    if word == "-":
        return "?", None
    for index, letter in enumerate(word[1:], 1):
        if letter in _FLAGS:
            continue
        if index > 1:
            options.append(word[:index])
        value = word[index + 1 :] or next(rest, None)
        if letter in _PROGRAM_KINDS:
            return (letter, value) if value is not None else ("?", None)
        if letter not in "WX" or value is None or value.startswith("importtime"):
            return "?", None
        options += [f"-{letter}", value]
        return "", None
    options.append(word)
    return "", None
