"""Check a program for missing files, missing modules and syntax errors, without executing it."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from launcher.cli.launch.program import Program
from launcher.core.env import PYTHONSAFEPATH
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.text import did_you_mean, near, shell_word, shell_words
from launcher.logs.terminal import escaped
from launcher.preload.masking import MASK, masked_argv
from launcher.program.module_search import missing_module
from launcher.program.program_command import PythonCommand, has_no_shebang, missing_interpreter
from launcher.program.program_files import heeds
from launcher.program.stdin_program import reader_of_stdin
from launcher.program.syntax import error_in, excerpt

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELL_SIGNS = re.compile(r"[;&|<>$`]")
_SHELL_OPERATOR = re.compile(r"\d*[;&|<>]+(?:&\d)?")  # a separate word: && ; > 2>&1
_SHELL_COMMANDS = frozenset((".", "cd", "eval", "exec", "export", "set", "source", "ulimit", "umask", "unset"))
_NO_FILE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG))


def fault_of(program: Program, *, has_stdin: bool = False) -> UnreadableError | UsageError | None:
    """Return the error that would prevent ranks on this machine from running `program`, or None.

    `has_stdin` means that all ranks inherit standard input.
    """
    if program.recipe is not None:
        from launcher.cli.training.trainer_process import missing_for_trainer  # only for the bundled trainer

        return missing_for_trainer()
    on_stdin = None if has_stdin else _program_on_stdin(program)
    missing = {"module": _missing_module, "script": _missing_script}.get(program.kind)
    target_fault = None if missing is None else missing(program)
    fault = _missing_program(program) or on_stdin or target_fault or _wrong_syntax(program)
    if fault is not None and fault.hint is not None and MASK in fault.hint:
        fault.hint = f"{fault.hint} (fill in the masked values)"
    return fault


def _missing_program(program: Program) -> UnreadableError | None:
    """Return an error if the first word of the command is not an executable program."""
    name, search = program.argv[0], program.environment.get("PATH", os.defpath)
    if (found := shutil.which(name, path=search)) is not None:
        if has_no_shebang(program.cwd / found):
            return UnreadableError(
                f"{name} has no #! line, so ranks cannot start it",
                hint=f"name its interpreter: -- {_started_by(program.argv)}",
            )
        interpreter = missing_interpreter(program.cwd / found, search, program.cwd)
        return None if interpreter is None else _without_interpreter(program, found, interpreter)
    is_file = os.path.isfile(program.cwd / name)  # noqa: PTH113 - Path.is_file raises for long names
    by_interpreter = f"start a script with its interpreter: -- {_started_by(program.argv)}"
    if (no_program := _no_program(program, search)) is not None:
        return no_program
    by_itself = os.access(program.cwd / name, os.X_OK) and not name.endswith(".py")
    if "/" in name:
        exists = os.path.exists(program.cwd / name)  # noqa: PTH110 - the same
        reason = "is not executable" if exists else "does not exist"
        fault = UnreadableError(f"{name} {reason}, so ranks cannot start it", hint=by_interpreter if is_file else None)
        fault.instead = (program.argv, (_interpreter(name), *program.argv)) if is_file else None
        return fault
    reason = "not found on the ranks' PATH"
    if is_file:
        hint = f"add the directory: -- ./{name}" if by_itself else by_interpreter
        fault = UnreadableError(f"{name}: {reason}, but ./{name} exists", hint=hint)
        fault.instead = (
            program.argv,
            (f"./{name}", *program.argv[1:]) if by_itself else (_interpreter(name), *program.argv),
        )
        return fault
    meant = did_you_mean(near(name, sorted(_programs_on(search)), limit=1))
    return UnreadableError(f"{name}: {reason}", hint=meant or "if the program is not on PATH, give its path")


def _no_program(program: Program, search: str) -> UnreadableError | None:
    """Return an error if the command's first word is an option or shell syntax instead of a program."""
    name, *rest = masked_argv(program.argv)
    if name.startswith("-"):
        hint = f"write the program before its arguments: -- python train.py {shell_words((name, *rest))}"
        return UnreadableError(f"COMMAND must begin with a program, but {name} is an option", hint=hint)
    try:
        words = shlex.split(name)
    except ValueError:  # an unclosed quote
        words = [name]
    begins = next((word for word in words if not _ASSIGNMENT.match(word)), None)
    is_command = begins in _SHELL_COMMANDS or (begins is not None and shutil.which(begins, path=search) is not None)
    operators = " ".join(word if _SHELL_OPERATOR.fullmatch(word) else shell_word(word) for word in rest)
    by_shell = f"start a shell: -- bash -c {shell_word(f'{name} {operators}'.strip())}"
    if _ASSIGNMENT.match(name) and not (is_command and _SHELL_SIGNS.search(name)):
        moved = [*words, *rest] if is_command else [name, *rest]
        count = next((at for at, word in enumerate(moved) if not _ASSIGNMENT.match(word)), len(moved))
        given = " ".join(f"--env {shell_word(word)}" for word in moved[:count])
        message = f"{name} sets a variable, which needs a shell, but COMMAND is started without one"
        return UnreadableError(message, hint=f"use --env: {given} -- {shell_words(moved[count:]) or 'PROGRAM'}")
    if name in _SHELL_COMMANDS:
        return UnreadableError(f"{name} is a shell command, but COMMAND is started without a shell", hint=by_shell)
    if words == [name] or not is_command or os.path.exists(program.cwd / name):  # noqa: PTH110 - as above
        return None
    hint = by_shell if _SHELL_SIGNS.search(name) else f"remove the quotes: -- {shell_words((*words, *rest))}"
    return UnreadableError(f"{name}: the first word of COMMAND is a complete command, not a program", hint=hint)


def _programs_on(search: str) -> Iterator[str]:
    for directory in search.split(os.pathsep):
        with suppress(OSError), os.scandir(directory or ".") as entries:
            yield from (entry.name for entry in entries if os.access(entry.path, os.X_OK) and not entry.is_dir())


def _started_by(argv: Sequence[str]) -> str:
    return f"{_interpreter(argv[0])} {shell_words(masked_argv(argv))}"


def _interpreter(script: str) -> str:
    return {".py": "python", ".sh": "bash"}.get(os.path.splitext(script)[1], "INTERPRETER")  # noqa: PTH122


def _without_interpreter(program: Program, found: str, interpreter: str) -> UnreadableError:
    name = program.argv[0]
    if interpreter.endswith("\r"):
        return UnreadableError(
            f"{name} has Windows line endings (CR LF), so its #! line names an interpreter that does not exist",
            hint=f"convert the line endings: sed -i 's/\\r$//' {shell_word(found)}",
        )
    hint = f"correct that line, or name an interpreter: -- {_started_by(program.argv)}"
    if " " in interpreter:  # the kernel passes everything after `env` as one word
        hint = f"use -S to pass options to an interpreter: #!/usr/bin/env -S {interpreter}"
    return UnreadableError(f"{name}: its #! line names {interpreter}, which does not exist", hint=hint)


def _program_on_stdin(program: Program) -> UnreadableError | None:
    name = reader_of_stdin(program.argv, program.environment.get("PATH", os.defpath), program.cwd)
    if name is None:
        return None
    example = {"Python": "python train.py"}.get(name, f"{name} FILE")
    return UnreadableError(
        f"COMMAND is {name} without a program; it would read one from standard input, which is /dev/null in ranks",
        hint=f"check for an empty shell variable, or give a program, for example `-- {example}`",
    )


def stdin_notes(*, offers_stdin: bool) -> Iterator[str]:
    """Yield a note if standard input has data, because ranks do not get this data."""
    way = "add --stdin RANK, or pass" if offers_stdin else "pass"
    with suppress(OSError, ValueError):
        found = os.fstat(0)
        holds_data = stat.S_ISREG(found.st_mode) and found.st_size > os.lseek(0, 0, os.SEEK_CUR)
        if stat.S_ISFIFO(found.st_mode):
            holds_data = any(fcntl.ioctl(0, termios.FIONREAD, bytes(4)))
        if holds_data:
            yield f"note: ranks do not get the data on standard input; theirs is /dev/null: {way} a file to the program"


def _missing_script(program: Program) -> UnreadableError | None:
    script = program.cwd / program.target
    if os.path.isdir(script) and not (script / "__main__.py").exists():  # noqa: PTH112 - Path.is_dir raises for long names
        message = f"{program.target} is a directory without a __main__.py, so ranks cannot run it"
        return UnreadableError(message, hint=f"name a script file: -- python {program.target.rstrip('/')}/train.py")
    try:
        script.stat()
    except OSError as error:
        if error.errno in _NO_FILE:  # Python reports other errors better
            hint = "give a path relative to the current directory, in which ranks start"
            return UnreadableError(f"{program.target} does not exist, so ranks cannot run it", hint=hint)
    return None


def _missing_module(program: Program) -> UnreadableError | None:
    assert program.python is not None
    if not (target := program.target):
        hint = "give a module, for example `-- python -m train`; check for an empty shell variable"
        return UnreadableError("the module name after -m is empty, so ranks cannot run it", hint=hint)
    if (name := missing_module(program.python, program.cwd, program.environment)) is None:
        return None
    if name == f"{target}.__main__":
        hint = f"name a module in the package: -- python -m {target}.train"
        return UnreadableError(f"{target} is a package without a __main__.py, so ranks cannot run it", hint=hint)
    if os.path.isfile(program.cwd / target):  # noqa: PTH113 - Path.is_file raises for long names
        hint = f"start a file without -m: -- python {shell_word(target)}"
    else:
        hint = _where_python_looks(program.python, program.environment)
    message = f"{program.python.interpreter} does not find the module {name}, so ranks cannot run it"
    return UnreadableError(message, hint=hint)


def _where_python_looks(python: PythonCommand, environment: Mapping[str, str]) -> str:
    beside, inherits = heeds(python, environment)
    if beside and inherits:
        return "put it in the current directory or on PYTHONPATH, or install it"
    places = ("put it in the current directory or " * beside, "put it on PYTHONPATH or " * inherits, "install it")
    by = PYTHONSAFEPATH if all(heeds(python, {})) else shell_words(python.options)
    return f"{''.join(places)}; {by} restricts where Python searches"


def _wrong_syntax(program: Program) -> UsageError | None:
    if program.python is None:
        return None
    if (error := error_in(program.python, program.cwd, sys.executable)) is None:
        return None
    name = "the code after -c" if program.kind == "code" else escaped(program.target)
    place = f"{name}, line {error.lineno}" if error.lineno else name
    wrong = UsageError("\n".join((f"{place}: {escaped(error.msg)}", *map(escaped, excerpt(error)))))
    wrong.has_lines = True
    return wrong
