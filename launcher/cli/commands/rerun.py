"""`tlaunch rerun`: repeat a run with its recorded command and options."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.launch import start
from launcher.cli.launch.prepare import prepare
from launcher.cli.launch.recorded import as_words, given_again, masked_in, recorded_options
from launcher.cli.options.chosen_run import RUN_HELP, chosen_to_rerun, confirm_owner, run_argument
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.run import RARE, RUN_GROUPS, RUN_PARAMETERS
from launcher.cli.run_options import RunOptions, for_engine
from launcher.cli.text.saved_text import newest_checkpoint
from launcher.cli.text.stdout import as_argument, say, write_out
from launcher.cli.training.resume import names_a_run
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

The new run starts in the working directory of the recorded run, with the environment of this shell. Its run directory
is created next to the recorded one. Options that you give replace recorded ones; --env and --set add to them. If
COMMAND begins with -, it is appended to the arguments of the recorded program; in most programs the last value of an
option counts.

Secrets are masked in a record: `tlaunch rerun` then lists the options to give again, and starts nothing. `--env NAME`
without a value takes the value from this shell. Before it runs the command of another user, or of a run in another
directory unless RUN is its full name or a path, it asks for confirmation; if stdin is not a terminal, --yes is
required.

Exit codes: as for `tlaunch run`; 1 also: you answered no; 2 also: no such run, a record without options, or --yes is
missing.
"""
NOT_TAKEN = ("command", "json", "runs_dir", "dry_run")
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_COMMANDS = re.compile(r"-[a-z]*c")  # a shell's option before a command line
REFERENCES = ("resume", "init_from")  # names of runs, or paths
PATHS = ("rank_table", "config", "data", "source", "target", *REFERENCES)  # relative to the current directory


class _Rerun(TakesCommand):
    """A click command that takes RUN before `--` and COMMAND after it."""

    without = "start the recorded one"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") :]) if "--" in args else (args, [])
        if after == ["--"]:
            before = args  # the parser refuses it
        ctx.params["command"] = tuple(after[1:])
        return super().parse_args(ctx, before)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- COMMAND [ARG]...]"]


@click.command(cls=_Rerun, epilog=EPILOG, help=f"Repeat a run, optionally with changed options.\n\n{RUN_HELP}")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before repeating a run of another user or directory.")
@click.option("--dry-run/--no-dry-run", help="Print the command line without running it.")
@run_argument
@click.pass_context
def rerun(
    context: click.Context, /, *, run: str | None, dry_run: bool, yes: bool, runs_dir: Path, **options: Any
) -> int:
    run_dir = chosen_to_rerun(runs_dir, run, yes=yes or dry_run)
    recorded, cwd = recorded_options(run_dir)
    given = {
        name: value
        for name, value in options.items()
        if (value if name == "command" else context.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    }
    given |= {name: _absolute(name, given[name], run_dir.root.parent) for name in PATHS if name in given}
    if "command" in given and given["command"][0].startswith("-"):
        given["command"] = _with_arguments(recorded, given["command"], run_dir.root.name)
    again = replace(given_again(recorded, given), runs_dir=run_dir.root.parent)
    again = _with_recorded_settings(again, recorded, run_dir, cwd) if "config" not in given else again
    own = (cwd / usual_runs_dir()).resolve() == again.runs_dir.resolve()
    line = shell_words(("tlaunch", "run", *as_words(replace(again, runs_dir=DEFAULT_RUNS_DIR) if own else again)))
    if cwd.resolve() != Path.cwd().resolve():
        line = f"cd {shell_word(str(cwd))} && {line}"
    secrets = ", ".join(masked_in(again))
    confirm_owner(run_dir, yes=yes or dry_run)
    if dry_run:
        if again.resume is not None and not secrets:
            _enter(cwd)
            # Raises as the run would.
            prepare(for_engine(replace(again, dry_run=True, detach=False), os.environ), os.environ)
        write_out(f"{line}\n")
        if secrets:
            say(f"note: fill in the masked values: {secrets}")
        return EXIT_OK
    if secrets:
        raise UsageError(
            f"the record of {run_dir.root.name} masks secrets: {secrets}", hint=_how_to_give(again, run_dir)
        )
    if not again.quiet:
        say(f"as {run_dir.root.name}: {line}")
        if not again.command and again.resume is None and (saved := newest_checkpoint(run_dir)) is not None:
            run = as_argument(run_dir)
            say(f"note: this starts over; `tlaunch rerun {run} --resume {run}` resumes from step {saved[1].step:,}")
    _enter(cwd)
    return start.run(again).exit_code


rerun.params += [option for option in RUN_PARAMETERS if option.name not in NOT_TAKEN]
rerun.groups, rerun.rare, rerun.is_like_run = RUN_GROUPS, RARE, True


def _enter(cwd: Path) -> None:
    try:
        os.chdir(cwd)
    except OSError as error:
        raise UnreadableError(f"cannot start ranks in the run's original directory {cwd}: {error.strerror}") from error


def _with_recorded_settings(again: RunOptions, recorded: RunOptions, run_dir: RunDir, cwd: Path) -> RunOptions:
    """If the run's --config file has changed or is gone, use the settings that the run recorded, and print a note."""
    if again.config is None or not run_dir.settings.is_file():  # older runs did not record them
        return again
    from launcher.cli.training.trainer_program import changed_file  # only for --config

    if (change := changed_file(recorded, run_dir.settings, cwd)) is None:
        return again
    say(f"note: {change}; this run uses the recorded settings, unless you give --config")
    return replace(again, config=str(run_dir.settings))


def _how_to_give(options: RunOptions, run_dir: RunDir) -> str:
    """Return a hint on how to supply the secrets that are masked in the recorded options."""
    wanted = list(masked_in(options))
    variables = [each for each in wanted if each.startswith("--env ")]
    line = " ".join(("tlaunch rerun", as_argument(run_dir), *variables))
    others = ", ".join(each for each in wanted if each not in variables)
    if not variables:
        return f"give {others} again on the command line"
    return f"set them in this shell and pass them on: `{line}`" + (f"; also give {others} again" if others else "")


def _with_arguments(recorded: RunOptions, arguments: tuple[str, ...], name: str) -> tuple[str, ...]:
    if not recorded.command:
        message = f"`{arguments[0]}` is not a program, and {name} ran the bundled trainer, which takes settings, not arguments"
        raise UsageError(message, hint="change a setting with --set KEY=VALUE; write KEY without leading dashes")
    interpreter = recorded.command[0].rpartition("/")[2]
    if interpreter in SHELLS and any(_COMMANDS.fullmatch(word) for word in recorded.command[1:]):
        raise UsageError(
            f"{name} ran `{interpreter} -c`, and {interpreter} would take `{arguments[0]}` as its own parameter",
            hint=f"give the complete command: `tlaunch rerun {name} -- {interpreter} -c '...'`",
        )
    return (*recorded.command, *arguments)


def _absolute(name: str, value: Any, runs_dir: Path) -> Any:
    """Make the path in the option `name` absolute. The name of a run, or of nothing that exists, is returned unchanged."""
    if isinstance(value, Path):
        return value.absolute()
    is_name = not os.path.exists(value) or (name in REFERENCES and names_a_run(runs_dir, value))  # noqa: PTH110 - it may be too long
    return value if is_name else os.path.abspath(value)  # noqa: PTH100 - as above
