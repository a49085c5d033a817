"""Run a program as `__main__`, directly or in a fork. Reimplements CPython's Modules/main.c and pythonrun.c.

The steps follow CPython: sys.argv, sys.path[0], a new `__main__`, the code, and the hook for an exception. Exceptions
propagate unchanged and end the interpreter itself, so CPython handles exit codes, SIGINT, `atexit` and
threads. Only this package's frames are removed from tracebacks.

Not imitated: a few frames of this package are below the program's own. `inspect.stack()[-1]` and `sys._getframe` show
them, and they count towards the recursion limit.
"""

from __future__ import annotations

import atexit
import builtins
import marshal
import os
import sys
from _frozen_importlib import BuiltinImporter
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader, SourcelessFileLoader

from . import LOADED_BEFORE, failure
from .frames import of_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import CodeType, TracebackType
    from typing import Any

_PYC_HEADER_BYTES = 16
_MAX_NAME_BYTES = 15
# Modules that this package imported for itself; the program may have modules of the same names.
_own: set[str] = set()


def main(born_with: dict[str, Any]) -> None:
    """Run the program that `sys.argv` names. `born_with` holds the globals that Python gives to a script."""
    way, _, engines_stderr = sys.argv[1].partition("=")
    if way == "run":
        _, _, device_dir, kind, target, *arguments = sys.argv
        note_imports()
        program = Program(kind, target, arguments)
        prepare(program, born_with)
        show_command_line(program.command_line)
        failure.install(os.path.abspath(device_dir), int(engines_stderr) if engines_stderr else None)
        _forget_collisions()
        execute(program)
        return
    import gc

    from . import serve  # imports library modules that a program should not find loaded

    program, ending = serve.serve(int(sys.argv[2]), born_with)  # returns in every forked rank
    _forget_collisions()
    try:
        execute(program)
        ending.is_success = True
    except SystemExit as stop:
        ending.is_success = not failure.exit_status(stop)
        raise
    finally:
        is_watched = sys.gettrace() or sys.getprofile()  # called by the program, which would see too many frames
        if is_watched:
            atexit.unregister(ending.run)
        if is_watched or not atexit._ncallbacks():  # the program may have removed this one as well
            gc.unfreeze()


def note_imports() -> None:
    """Record which modules this package has imported. Call this before importing anything for the program."""
    _own.update(set(sys.modules) - LOADED_BEFORE)


def _forget_collisions() -> None:
    """Unload library modules whose names the program also uses, so that it imports its own modules.

    This is limited to names of files beside the program, because loading a library module twice is slow.
    """
    if not (_own and sys.path):
        return
    try:
        beside = {name.partition(".")[0] for name in os.listdir(sys.path[0] or ".")}
    except OSError:
        return
    for name in _own:
        if name.partition(".")[0] in beside:
            sys.modules.pop(name, None)


class Program:
    """The program to run. `kind` is script, module or code."""

    def __init__(self, kind: str, target: str, arguments: list[str]) -> None:
        self.kind = kind
        self.target = target
        self.arguments = arguments
        # The command that would start the program directly, since `sys.orig_argv` is unchanged.
        words = sys.orig_argv
        before = next((index for index, word in enumerate(words) if word.endswith("/preload/__main__.py")), 1)
        options = {"script": [], "module": ["-m"], "code": ["-c"]}[kind]
        self.command_line = [*(words[:before] or [sys.executable]), *options, target, *arguments]
        self.path = target  # absolute path of a script
        try:
            if not target.startswith("/"):
                self.path = os.getcwd() if target == "." else os.getcwd() + "/" + target
        except OSError:  # the working directory is gone
            pass
        self.holds_main = kind == "script" and _is_package(self.path)
        self.is_file = kind == "script" and not self.holds_main


def prepare(program: Program, born_with: dict[str, Any]) -> None:
    sys.orig_argv[:] = program.command_line
    first = {"script": program.target, "module": "-m", "code": "-c"}[program.kind]
    sys.argv[:] = [first, *program.arguments]
    renew_main(program, born_with)
    if program.holds_main:
        sys.path.insert(0, program.path)
    elif not getattr(sys.flags, "safe_path", sys.flags.isolated):
        try:
            beside = os.path.dirname(os.path.realpath(program.target)) if program.kind == "script" else ""
            sys.path.insert(0, os.getcwd() if program.kind == "module" else beside)
        except OSError:  # the working directory is gone
            pass


def renew_main(program: Program, born_with: dict[str, Any]) -> None:
    """Create a new `__main__` module for the program. In a forked rank, call this after `gc.freeze`.

    Objects held by a frozen module would never be finalised: files, for instance, would not be flushed.
    """
    main = type(sys)("__main__")
    main.__dict__.clear()
    main.__dict__.update(born_with, __doc__=None, __builtins__=builtins)
    if "__annotations__" in born_with:
        main.__annotations__ = {}
    if program.is_file:
        loader = SourcelessFileLoader if program.path.endswith(".pyc") else SourceFileLoader
        main.__dict__.update(__file__=program.path, __loader__=loader("__main__", program.path))
    else:
        main.__dict__["__loader__"] = BuiltinImporter
        main.__dict__.pop("__file__", None)
        main.__dict__.pop("__cached__", None)
    sys.modules["__main__"] = main


def execute(program: Program) -> None:
    main = sys.modules["__main__"].__dict__
    try:
        if program.is_file:
            exec(_code_of_file(program), main)
        elif program.kind == "code":
            exec(_code_of_text(program.target + "\n"), main)
        else:
            import runpy

            name = "__main__" if program.holds_main else program.target
            runpy._run_module_as_main(name, alter_argv=not program.holds_main)  # type: ignore[attr-defined]
    except SystemExit as stop:
        failure.note_exit(stop)
        raise
    except BaseException as error:
        failure.note_exception(error)
        _hide_own_frames(program)
        raise
    _forget_file(program)


def _is_package(path: str) -> bool:
    """Return True if the path is a directory or an archive, which should contain a `__main__.py`."""
    for hook in sys.path_hooks:
        try:
            sys.path_importer_cache[path] = hook(path)
        except ImportError:
            continue
        return True
    return False


def _code_of_text(source: str) -> CodeType:
    code = compile(source, "<string>", "exec", dont_inherit=True)
    if sys.version_info >= (3, 13):  # shows lines of this code in tracebacks
        import linecache

        key = code if hasattr(linecache, "_interactive_cache") else "<string>"  # 3.13.0 finds this code by its name
        linecache._register_code(key, source, "<string>")
    return code


def _code_of_file(program: Program) -> CodeType:
    try:
        with open(program.path, "rb") as file:
            source = file.read()
    except OSError as error:
        name = program.command_line[0]
        sys.stderr.write(f"{name}: can't open file {program.path!r}: [Errno {error.errno}] {error.strerror}\n")
        sys.exit(2)
    if program.path.endswith(".pyc") and source.startswith(MAGIC_NUMBER):
        code: CodeType = marshal.loads(source[_PYC_HEADER_BYTES:])  # noqa: S302 - it is the program
        return code
    return compile(source, program.path, "exec", dont_inherit=True)


def _hide_own_frames(program: Program) -> None:
    """Wrap the current exception hook so that it sees only the frames of the program."""
    hook = sys.excepthook

    def shown(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        sys.excepthook = hook
        traceback = of_program(traceback, error)
        error.__traceback__ = sys.last_traceback = traceback
        try:
            hook(kind, error, traceback)
        finally:
            _forget_file(program)

    sys.excepthook = shown


def _forget_file(program: Program) -> None:
    """Remove `__file__` from `__main__`, as CPython does at the end of a script."""
    if program.is_file:
        main = sys.modules.get("__main__")  # unless the program removed it
        for name in ("__file__", "__cached__"):
            getattr(main, "__dict__", {}).pop(name, None)


# --- what `ps` and `top` show of this process: the program's name and command line ---


def show_command_line(words: list[str]) -> None:
    """Change the command line that `ps` shows. It is cut to the length of the original command line."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), which counts from 1 and pid
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text.ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        pass  # not Linux, no /proc, or not permitted


def process_name() -> str:
    """Return the short name of this process, or an empty string if /proc is missing."""
    try:
        with open("/proc/self/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return ""


def rename_process(new: str) -> None:
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(os.fsencode(new)[:_MAX_NAME_BYTES])
    except OSError:
        pass
