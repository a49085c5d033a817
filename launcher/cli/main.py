"""`tlaunch`: the table of commands, loaded one at a time, and how errors reach a person."""

# ruff: noqa: E402 - see `_ends_silently`

from __future__ import annotations

import signal
from contextlib import suppress

# Ctrl-C while this command is still being imported ends it silently, not with a traceback out of an import.
_ends_silently = False
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # what is ignored (`nohup`, `&`) stays ignored
    with suppress(ValueError):  # imported outside the main thread
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

# The sections of `tlaunch --help`; `name: (module:attribute, short help of the command)`.
# Help reads this table and imports no command.
SECTIONS: dict[str, Commands] = {
    "Run": {
        "run": ("launcher.cli.commands.run:run", "Start one process per device and supervise them."),
        "rerun": ("launcher.cli.commands.rerun:rerun", "Repeat a run, optionally with changed options."),
        "stop": ("launcher.cli.commands.stop:stop", "Stop a run and wait until its processes have ended."),
        "wait": ("launcher.cli.commands.wait:wait", "Wait for a run to end, and exit with its exit code."),
        "exec": ("launcher.cli.commands.exec:exec_rank", "Become one rank of a job that mpirun or srun started."),
        "render": (
            "launcher.cli.commands.render.render_command:render",
            "Write a job file for Slurm, Kubernetes, mpirun, msrun or bash.",
        ),
        "explain": (
            "launcher.cli.commands.explain:explain",
            "Show where a rank's variables and the trainer's settings come from.",
        ),
        "doctor": (
            "launcher.cli.commands.doctor.doctor_command:doctor",
            "Check all servers for problems that would break a run.",
        ),
    },
    "Look at runs": {
        "ps": ("launcher.cli.commands.ps:ps", "List the active runs, newest first."),
        "status": ("launcher.cli.commands.status:status", "Show the state of a run, rank by rank."),
        "top": (
            "launcher.cli.commands.top.top_command:top",
            "Watch every rank's progress, CPU and memory until the run ends.",
        ),
        "logs": (
            "launcher.cli.commands.logs.logs_command:logs",
            "Show the logs of all ranks: one after another, merged or collapsed.",
        ),
        "why": ("launcher.cli.commands.why:why", "Show which rank failed first and why."),
        "stacks": ("launcher.cli.commands.stacks:stacks", "Show the current Python stack of every rank."),
        "report": (
            "launcher.cli.commands.report.report_command:report",
            "Show the results of runs, as text or with charts.",
        ),
        "prune": ("launcher.cli.commands.prune:prune", "Remove finished runs and print their names."),
    },
    "Rank tables": {
        "validate": ("launcher.cli.commands.validate:validate", "Check rank tables as HCCL does."),
        "table": ("launcher.cli.commands.table:table", "Show, compare, make and repair rank tables."),
    },
    "Bundled trainer": {
        "data": ("launcher.cli.commands.data:data", "Prepare sentence pairs and images for the trainer."),
        "plan": ("launcher.cli.commands.plan:plan", "Show how a training is divided among ranks."),
        "ckpt": ("launcher.cli.commands.ckpt:ckpt", "List, verify, compare, merge and convert checkpoints."),
        "translate": ("launcher.cli.commands.translate:translate", "Translate lines from stdin with a trained model."),
        "evaluate": (
            "launcher.cli.commands.evaluate:evaluate",
            "Score a trained model's translations with BLEU and chrF.",
        ),
    },
    "Shell": {
        "completion": (
            "launcher.cli.commands.completion:completion",
            "Print a shell script that completes commands, options and runs.",
        ),
    },
}

# tlaunch itself calls these; help does not list them.
HIDDEN: Commands = {"agent": ("launcher.cli.commands.agent_command:agent", "One server's part of a run over several.")}

MAX_HELP_WIDTH = 120  # columns, of a terminal that has more
HANDLES_SIGNALS_ITSELF = ("run", "rerun", "agent")
ENDING = (signal.SIGTERM, signal.SIGHUP)

EXIT_CODES = """\b
Exit codes:
  0        all ranks succeeded
  1        a failure that is not listed below;
           tables that are invalid or differ
  2        wrong usage, or a file, directory or program that is missing,
           unreadable or unwritable
  3        a refused rank table or layout
  124      a rank hung (--hang-timeout)
  126/127  a rank's program could not be started, its interpreter not found
  129      hung up (SIGHUP)
  130/131  interrupted (Ctrl-C) / quit (SIGQUIT)
  137      killed (SIGKILL): a rank, or the agent that supervises it
  143      terminated (SIGTERM)
  else     the code of the rank that failed first,
           or 128 + the signal that ended it
"""


class _Ended(BaseException):
    """A signal that asks this process to end: as KeyboardInterrupt, no error, and never to be swallowed."""

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
    "--no-config", is_flag=True, envvar=TLAUNCH_NO_CONFIG, help="Read no options from tlaunch.toml or pyproject.toml."
)
@click.version_option(__version__, prog_name="tlaunch")
@click.pass_context
def tlaunch(context: click.Context, /, *, no_config: bool) -> None:  # noqa: ARG001 - LazyGroup heeds it
    """Start distributed training on this machine or from a rank table, supervise every rank, and explain failures."""
    if context.invoked_subcommand not in HANDLES_SIGNALS_ITSELF:
        context.call_on_close(_unwind_when_asked_to_end())


def _unwind_when_asked_to_end() -> Callable[[], None]:
    """Have SIGTERM and SIGHUP end this process as an exception does, so that unfinished files are removed.

    What is ignored (`nohup`) stays ignored. Return what puts things back.
    """
    taken = [number for number in ENDING if signal.getsignal(number) is signal.SIG_DFL]

    def end(number: int, _frame: FrameType | None) -> None:
        for other in ENDING:  # another signal must not interrupt the cleaning up
            signal.signal(other, signal.SIG_IGN)
        raise _Ended(number)

    def put_back() -> None:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)

    for number in taken:
        signal.signal(number, end)
    return put_back


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the code that `tlaunch --help` documents. Never returns."""
    exit_after(lambda: _call(sys.argv[1:] if arguments is None else arguments))


def _call(words: Sequence[str]) -> Any:
    """Run a command line; what click refuses becomes an error of our own."""
    try:
        return tlaunch.main(words, prog_name="tlaunch", standalone_mode=False)
    except (TlaunchError, click.ClickException) as error:
        # A group without a command shows its help, which is an error for newer versions of click.
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            raise
        raise _refusal(error, words) from None  # a variable for it here would keep its traceback's frames and sockets


def _refusal(error: TlaunchError | click.ClickException, words: Sequence[str]) -> TlaunchError:
    """Return the error that a command line ends with, with the hint for a duration that was split into two words."""
    from launcher.cli.options.refusals import as_usage_error, hint_of_duration  # most command lines are correct

    refused = error if isinstance(error, TlaunchError) else as_usage_error(error, words)
    refused.hint = hint_of_duration(refused, words, tlaunch) or refused.hint
    return refused


def exit_after(work: Callable[[], Any]) -> NoReturn:
    """Do `work`, print what it raises, and exit with the code that it returns or that its error has."""
    # Where stdin, stdout or stderr was closed, the next pipe would be mistaken for one of them.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):  # Python leaves None where it found the descriptor closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for ever
    code = _exit_code_of(work)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # noqa: PERF203 - its reader has gone; the last flush must not change the code
            with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 - devnull is no path of the user's
                os.dup2(nowhere.fileno(), stream.fileno())
    sys.exit(code)


def _exit_code_of(work: Callable[[], Any]) -> int:
    try:
        code = work()
        sys.stdout.flush()
    except TlaunchError as error:
        if not error.is_reported:  # the lines of a refused table say themselves where and what the errors are
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
    """Return the code of a wish to end, also as the cause of another error: up to 3.11 Python wraps what ends a `__set_name__`."""
    if isinstance(error, click.Abort | KeyboardInterrupt):
        return EXIT_INTERRUPTED
    if isinstance(error, _Ended):
        return error.exit_code
    return None if error.__cause__ is None else _requested_exit_code(error.__cause__)


def _fail(error: OSError) -> int:
    """Report a system error; return 2 for a stdout that takes nothing: 1 would mean that `diff` found a difference."""
    if isinstance(error, BrokenPipeError):  # the reader of our output knows why
        return EXIT_FAILURE
    if error.filename is None and _is_directory_missing():
        say("error: the current directory has been removed\nhint: change to a directory that exists")
        return EXIT_USAGE
    reason = error.strerror or str(error)  # without Python's errno notation
    if _is_about_stdout(error):
        say(f"error: stdout cannot be written: {reason}")
        return EXIT_USAGE
    file = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    say(f"error: {printable(file + reason)}")
    if error.errno == errno.EMFILE:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        say(f"hint: raise the limit on open files, which is {limit} (`ulimit -n`)")
    return EXIT_FAILURE


def _is_directory_missing() -> bool:
    try:
        os.getcwd()  # noqa: PTH109 - `--help` needs no path
    except FileNotFoundError:
        return True
    return False


def _is_about_stdout(error: OSError) -> bool:
    """Return whether `error` came from a function that writes there, or Python holds text that it still cannot write."""
    import traceback  # most commands need none

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
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which raises what is caught from now on
