"""The `tlaunch` command: the table of subcommands (each is imported when called), and error reporting."""

# ruff: noqa: E402 - see `_ends_silently`

from __future__ import annotations

import signal
from contextlib import suppress

# Ctrl-C during the imports below ends the process silently, without a traceback.
_ends_silently = False
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # `nohup` and `&` ignore signals; keep that
    with suppress(ValueError):  # raised outside the main thread
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _ends_silently = True

# isort: split
import errno
import os
import resource
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from launcher import __version__
from launcher.cli.options.command_types import Commands, LazyGroup
from launcher.cli.text.stdout import say, write_out
from launcher.core.env import TLAUNCH_NO_CONFIG
from launcher.core.errors import (
    EXIT_FAILURE,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    RefusedTableError,
    TlaunchError,
    exit_code_of,
)
from launcher.core.text import printable

# The sections of `tlaunch --help`; `name: (module in launcher.cli.commands:attribute, short help of the command)`.
# Help reads this table and imports no command.
SECTIONS: dict[str, Commands] = {
    "Run": {
        "run": (".run:run", "Start one process per device and supervise them."),
        "rerun": (".rerun:rerun", "Repeat a run, optionally with changed options."),
        "stop": (".stop:stop", "Stop a run and wait until its processes have ended."),
        "wait": (".stop:wait", "Wait for a run to end, and exit with its exit code."),
        "exec": (".exec:exec_rank", "Become one rank of a job that mpirun or srun started."),
        "render": (".render.render_command:render", "Write a job file for Slurm, Kubernetes, mpirun, msrun or bash."),
        "explain": (".explain:explain", "Explain a rank's variables and the trainer's settings."),
        "doctor": (".doctor.doctor_command:doctor", "Check all servers for problems that would break a run."),
    },
    "Look at runs": {
        "ps": (".ps:ps", "List the active runs, newest first."),
        "status": (".status:status", "Show the state of a run, rank by rank."),
        "top": (".top.top_command:top", "Watch every rank's progress, CPU and memory until the run ends."),
        "logs": (".logs.logs_command:logs", "Show the logs of all ranks, one after another."),
        "why": (".why:why", "Show which rank failed first and why."),
        "stacks": (".stacks:stacks", "Show the current Python stack of every rank."),
        "report": (".report.report_command:report", "Show the results of runs, as text or with charts."),
        "prune": (".prune:prune", "Remove finished runs and print their names."),
    },
    "Rank tables": {
        "validate": (".validate:validate", "Check rank tables as HCCL does."),
        "table": (".table:table", "Show, compare, make and repair rank tables."),
    },
    "Bundled trainer": {
        "data": (".data:data", "Prepare sentence pairs and images for the trainer."),
        "plan": (".plan:plan", "Choose how a training is divided among ranks, and show it."),
        "ckpt": (".ckpt:ckpt", "List, verify, compare, merge and convert checkpoints."),
        "translate": (".translate:translate", "Translate lines from stdin with a trained model."),
        "evaluate": (".translate:evaluate", "Score a trained model's translations with BLEU and chrF."),
    },
    "Shell": {
        "completion": (".completion:completion", "Print a shell script that completes commands, options and runs.")
    },
}

# Other names of --help and --version.
HABITS: Commands = {
    "help": (".help:show_help", "Show the help of a command."),
    "version": (".help:show_version", "Show the version and exit."),
}
# Commands that help does not list.
HIDDEN: Commands = {"agent": (".agent_command:agent", "Supervise one server's ranks."), **HABITS}

MAX_HELP_WIDTH = 120  # columns, on wider terminals
HANDLES_SIGNALS_ITSELF = ("run", "rerun", "agent")
ENDING = (signal.SIGTERM, signal.SIGHUP)

EXIT_CODES = """\b
Exit codes:
  0        all ranks succeeded
  1        any other failure, for example a lost server;
           rank tables that are invalid or differ
  2        usage error, or a file, directory or program that is missing,
           unreadable or unwritable
  3        rank table or layout rejected
  124      a rank hung (--hang-timeout), or the run reached its time
           limit (--timeout)
  126/127  a rank's program could not be executed, or its interpreter
           was not found
  129      hung up (SIGHUP)
  130/131  interrupted (Ctrl-C) / quit (SIGQUIT)
  137      killed (SIGKILL): a rank, or the agent that supervises it
  143      terminated (SIGTERM)
  other    the exit code of the rank that failed first,
           or 128 + the signal that killed it
"""


class _Ended(BaseException):
    """Raised by a termination signal. Like KeyboardInterrupt, it is not caught by `except Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = exit_code_of(-number)


@click.command(
    cls=LazyGroup,
    sections=SECTIONS,
    hidden=HIDDEN,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": MAX_HELP_WIDTH},
    epilog=EXIT_CODES,
)
@click.option(
    "--no-config", is_flag=True, envvar=TLAUNCH_NO_CONFIG, help="Ignore options in tlaunch.toml and pyproject.toml."
)
@click.version_option(__version__, "-V", "--version", prog_name="tlaunch")
@click.pass_context
def tlaunch(context: click.Context, /, *, no_config: bool) -> None:  # noqa: ARG001 - LazyGroup reads it
    """Start distributed training on this machine or from a rank table, supervise every rank, and explain failures."""
    if context.invoked_subcommand not in HANDLES_SIGNALS_ITSELF:
        context.call_on_close(_unwind_when_asked_to_end())


def _unwind_when_asked_to_end() -> Callable[[], None]:
    """Make SIGTERM and SIGHUP raise an exception, so that unfinished files are removed.

    Ignored signals (`nohup`) stay ignored. Returns a function that restores the handlers.
    """
    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for other in ENDING:  # another signal must not interrupt the cleanup
            signal.signal(other, signal.SIG_IGN)
        raise _Ended(number)

    def put_back() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    for number in taken:
        signal.signal(number, end)
    return put_back


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with a code that `tlaunch --help` documents."""
    exit_after(lambda: _call(sys.argv[1:] if arguments is None else arguments))


def _call(words: Sequence[str]) -> Any:
    """Run a command line, and convert click's usage errors to UsageError."""
    try:
        return tlaunch.main(words, prog_name="tlaunch", standalone_mode=False)
    except (TlaunchError, click.ClickException) as error:
        # `tlaunch` without a command shows help, which newer versions of click raise as an error.
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise
        from launcher.cli.options.refusals import refusal  # most command lines are correct

        # No local variable: it would keep the traceback's frames and sockets alive.
        raise refusal(error, words, tlaunch) from None


def exit_after(work: Callable[[], Any]) -> NoReturn:
    """Call `work` and exit with the code that it returns. If it raises an error, print the error and exit."""
    # If stdin, stdout or stderr is closed, the next pipe would get its descriptor and be mistaken for it.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):  # None if the descriptor was closed when Python started
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - never closed
    code = _exit_code_of(work)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - the reader has closed; the exit code must not change
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - devnull is not a user's path
                os.dup2(nowhere.fileno(), stream.fileno())
    sys.exit(code)


def _exit_code_of(work: Callable[[], Any]) -> int:
    try:
        code = work()
        sys.stdout.flush()
    except TlaunchError as error:
        if not error.is_reported:  # the message of a RefusedTableError has its own error lines
            say(str(error) if isinstance(error, RefusedTableError) else f"error: {error}")
        return error.exit_code
    except click.ClickException as error:  # the help of a group
        say(error.format_message())
        return error.exit_code
    except (click.Abort, KeyboardInterrupt, _Ended, RuntimeError) as error:
        if (exit_code := _requested_exit_code(error)) is None:
            raise
        return exit_code
    except OSError as error:
        return _fail(error)
    return code if isinstance(code, int) else EXIT_OK


def _requested_exit_code(error: BaseException) -> int | None:
    """Return the exit code if the user or a signal ended the command, or None for other errors.

    Causes are searched, too: Python up to 3.11 wraps an exception that is raised in `__set_name__`.
    """
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, _Ended):
        return error.exit_code
    return None if error.__cause__ is None else _requested_exit_code(error.__cause__)


def _fail(error: OSError) -> int:
    """Report an OSError and return the exit code.

    The exit code is 2 if stdout cannot be written, because 1 means a difference in commands such as `table diff`.
    """
    if isinstance(error, BrokenPipeError):  # the reader closed the pipe on purpose
        return EXIT_FAILURE
    if error.filename is None and _is_directory_missing():
        say("error: the current directory has been removed\nhint: change to a directory that exists")
        return EXIT_USAGE
    reason = error.strerror or str(error)  # str() alone would include [Errno N]
    if _is_about_stdout(error):
        say(f"error: stdout cannot be written: {reason}")
        return EXIT_USAGE
    file = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    say(f"error: {printable(file + reason)}")
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        say(f"hint: raise the limit on open files with `ulimit -n`; it is {limit}")
    if error.errno == errno.EAGAIN:
        limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        say(f"hint: raise the limit on processes and threads of a user with `ulimit -u`; it is {limit}")
    return EXIT_FAILURE


def _is_directory_missing() -> bool:
    with suppress(FileNotFoundError):
        return not os.getcwd()  # noqa: PTH109 - `--help` needs no path
    return True


def _is_about_stdout(error: OSError) -> bool:
    """Return True if `error` came from writing to stdout."""
    import traceback  # imported only on errors, to keep startup fast

    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code is write_out.__code__:
            return True
        if frame.f_code is click.echo.__code__ and frame.f_locals["file"] is sys.stdout:
            return True
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        return True
    return False


if _ends_silently:
    signal.signal(signal.SIGINT, signal.default_int_handler)
