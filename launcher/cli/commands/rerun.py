"""`tlaunch rerun`: start again what a run's record says that it ran."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.launch import start
from launcher.cli.launch.recorded import as_words, given_again, masked_in, recorded_options
from launcher.cli.options.chosen_run import RUN_HELP, chosen_to_rerun, confirm_owner, run_argument
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.run import RARE, RUN_GROUPS, RUN_PARAMETERS
from launcher.cli.run_options import RunOptions
from launcher.cli.text.saved_text import newest_checkpoint
from launcher.cli.text.stdout import as_argument, say, write_out
from launcher.core.errors import EXIT_OK, UnreadableError, UsageError
from launcher.core.resources import usual_runs_dir
from launcher.core.run_dir import DEFAULT_RUNS_DIR, RunDir
from launcher.core.text import shell_word, shell_words

EPILOG = """\b
Examples:
  tlaunch rerun
  tlaunch rerun 20261121-053712-train --devices 4 --max-restarts 0
  tlaunch rerun -- --epochs 1
  tlaunch rerun --env NCCL_DEBUG=INFO -- python train.py --epochs 1
  tlaunch rerun --dry-run

The run starts in the directory in which that one was started, with the environment of this shell, and its directory is made
beside that one's. Options that are given take the place of recorded ones; --env and --set add to them. A COMMAND that begins
with - is arguments, which are put behind those of the recorded program; for most programs the last one of a name counts.
Secrets are masked in a record: `tlaunch rerun` refuses such a run and names what has to be given again. `--env NAME`
without a value passes on the one that this shell has. Before it runs the command of another user, or of a run in another
directory that RUN does not name, it asks; where nobody can be asked, it refuses without --yes.

Exit codes: those of `tlaunch run`; 1 also: the answer was no; 2 also: no such run, its record does not hold its options, or
--yes is missing.
"""
NOT_TAKEN = ("command", "json", "runs_dir", "dry_run")
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_COMMANDS = re.compile(r"-[a-z]*c")  # the option of a shell that is followed by a line
PATHS = ("rank_table", "config", "data", "resume")  # which are relative to where they are typed


class _Rerun(TakesCommand):
    """A command whose RUN stands before `--`, and COMMAND after it."""

    without = "start the recorded one"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") :]) if "--" in args else (args, [])
        if after == ["--"]:
            before = args  # which is refused
        ctx.params["command"] = tuple(after[1:])
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND [ARG]...]"]


@click.command(cls=_Rerun, epilog=EPILOG, help=f"Repeat a run, optionally with changed options.\n\n{RUN_HELP}")
@click.option("-y", "--yes", is_flag=True, help="Do not ask about a run in another directory or of another user.")
@click.option("--dry-run/--no-dry-run", help="Print the command line that would be run, and start nothing.")
@run_argument
@click.pass_context
def rerun(
    context: click.Context, /, *, run: str | None, dry_run: bool, yes: bool, runs_dir: Path, **options: Any
) -> None:
    run_dir = chosen_to_rerun(runs_dir, run, yes=yes or dry_run)
    recorded, cwd = recorded_options(run_dir)
    given = {name: value for name, value in options.items() if _is_given(context, name, value)}
    given |= {name: _absolute(given[name]) for name in PATHS if name in given}
    if "command" in given and given["command"][0].startswith("-"):
        given["command"] = _with_arguments(recorded, given["command"], run_dir.root.name)
    again = replace(given_again(recorded, given), runs_dir=run_dir.root.parent)
    line = _command_line(again, cwd)
    secrets = ", ".join(masked_in(again))
    confirm_owner(run_dir, yes=yes or dry_run)
    if dry_run:
        write_out(f"{line}\n")
        if secrets:
            say(f"note: masked here, and to be filled in: {secrets}")
        context.exit(EXIT_OK)
    if secrets:
        raise UsageError(
            f"the record of {run_dir.root.name} masks secrets: {secrets}", hint=_how_to_give(again, run_dir)
        )
    if not again.quiet:
        say(f"as {run_dir.root.name}: {line}")
        if not again.command and again.resume is None and (saved := newest_checkpoint(run_dir)) is not None:
            run = as_argument(run_dir)
            say(f"note: this starts over; `tlaunch rerun {run} --resume {run}` resumes from step {saved.step:,}")
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UnreadableError(f"{cwd}, where the run was started, cannot be entered: {error.strerror}") from error
    context.exit(start.run(again).exit_code)


rerun.params += [option for option in RUN_PARAMETERS if option.name not in NOT_TAKEN]
rerun.groups, rerun.rare, rerun.is_like_run = RUN_GROUPS, RARE, True


def _how_to_give(options: RunOptions, run_dir: RunDir) -> str:
    """Return how to give masked secrets again, by variables of the shell if possible."""
    wanted = list(masked_in(options))
    variables = [each for each in wanted if each.startswith("--env ")]
    line = " ".join(("tlaunch rerun", as_argument(run_dir), *variables))
    others = ", ".join(each for each in wanted if each not in variables)
    if not variables:
        return f"give {others} again on the command line"
    return f"set them in this shell and pass them on: {line}" + (f"; also give {others} again" if others else "")


def _is_given(context: click.Context, name: str, value: Any) -> bool:
    if name == "command":
        return bool(value)
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _with_arguments(recorded: RunOptions, arguments: tuple[str, ...], name: str) -> tuple[str, ...]:
    """Return the recorded program with more arguments behind its own."""
    if not recorded.command:
        message = (
            f"{arguments[0]} is no program, and {name} ran the bundled trainer, which has settings and no arguments"
        )
        raise UsageError(message, hint="change a setting by --set KEY=VALUE, without the dashes")
    interpreter = recorded.command[0].rpartition("/")[2]
    if interpreter in SHELLS and any(_COMMANDS.fullmatch(word) for word in recorded.command[1:]):
        raise UsageError(
            f"{name} ran a line of {interpreter}, which would take {arguments[0]} for a parameter of its own",
            hint=f"write all of it: tlaunch rerun {name} -- {interpreter} -c '...'",
        )
    return (*recorded.command, *arguments)


def _absolute(value: Any) -> Any:
    """Return a path as it is called from everywhere; a name that is no path here stays."""
    if isinstance(value, Path):
        return value.absolute()
    return os.path.abspath(value) if os.path.exists(value) else value  # noqa: PTH100, PTH110 - a name may be too long


def _command_line(options: RunOptions, cwd: Path) -> str:
    """Return what one would type here."""
    own = cwd / usual_runs_dir()
    if own.resolve() == options.runs_dir.resolve():
        options = replace(options, runs_dir=DEFAULT_RUNS_DIR)
    line = shell_words(("tlaunch", "run", *as_words(options)))
    return line if cwd.resolve() == Path.cwd().resolve() else f"cd {shell_word(str(cwd))} && {line}"
