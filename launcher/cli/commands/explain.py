"""`tlaunch explain`: show a rank's environment variables and the origin of each value."""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.launch.elastic import first_allotment
from launcher.cli.launch.prepare import Prepared, prepare
from launcher.cli.launch.rank_network import with_network
from launcher.cli.launch.recorded import as_words
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.precedence import given_last
from launcher.cli.options.run import RARE, RUN_GROUPS, RUN_PARAMETERS
from launcher.cli.options.types import IntRange
from launcher.cli.run_options import RunOptions, for_engine
from launcher.cli.text.columns import counted, wrapped_columns
from launcher.cli.text.membership_text import attempt_text
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.cli.text.style import screen_of
from launcher.core.codec import encode, json_text
from launcher.core.env import MASTER_PORT, MS_SCHED_PORT, RANK
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.text import printable, ranges, shell_words
from launcher.engines.assemble import Draft, Request, attempt_request, attempt_table, draft
from launcher.engines.leftover_variables import Conflict, Fate, conflicts
from launcher.engines.variables import Origin, Variable
from launcher.mesh.coordinates import coordinate_of
from launcher.preload.masking import masked, masked_argv
from launcher.program.program_files import DEFAULT_RECIPE
from launcher.runs.record import free_name

EPILOG = """\b
Examples:
  tlaunch explain --devices 4 --mp 2 -- python train.py
  tlaunch explain --rank 3 --rank-table rank_tables/rank_table_8pcs.json
  tlaunch explain --all --json --devices 2 -- python train.py
  tlaunch explain OMP_NUM_THREADS --devices 4
  tlaunch explain train.learning_rate
  tlaunch explain --settings --set train.steps=5 > settings.toml

Origins: layout, rank table: derived from it; --env: set by that option; inherited: from your shell; tlaunch: any other
variable that tlaunch sets; removed: left by another launcher in your shell, and not passed to ranks.

Exit codes: 0; 2 wrong usage, or a file cannot be read; 3 invalid rank table or layout.
"""
# --detach is accepted and ignored, so that a command line of `tlaunch run` works unchanged.
NOT_TAKEN = ("dry_run", "json", "quiet", "verbose")
NO_EFFECT = {"detach", "console", "stdin", "timeout"}  # only --help-all lists them
SETTING_FIELDS = ("value", "default", "origin")  # in JSON
REMOVED = "(removed)"
FREE_PORT = "(a free port)"
PORTS = (MASTER_PORT, MS_SCHED_PORT)  # both have the same value
MAX_PROSE_COLUMNS = 100
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]+")


@frozen
class Explained:
    draft: Draft
    request: Request
    variables: tuple[Variable, ...]
    conflicts: tuple[Conflict, ...]


class TakesSetting(TakesCommand):
    """Reads options also after the name of a setting or variable: `tlaunch explain OMP_NUM_THREADS --devices 2`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        match self.make_parser(ctx).parse_args(list(args))[0].get("command"):
            case (word, following, *_) if following.startswith("-"):
                from launcher.cli.training.setting_text import is_like_setting  # not needed for most programs

                ctx.allow_interspersed_args = _is_variable(word) or is_like_setting(word)
        return super().parse_args(ctx, args)


@click.command(cls=TakesSetting, epilog=EPILOG, context_settings={"allow_interspersed_args": False})
@click.option(
    "--rank", "global_rank", type=IntRange(min=0), default=0, metavar="N", help="Rank to explain.  [default: 0]"
)
@click.option("--all", "everything", is_flag=True, help="Include environment variables that tlaunch does not set.")
@click.option(
    "--settings",
    "of_settings",
    is_flag=True,
    help="Show the bundled trainer's settings as a --config file. Comments give the source of each setting and a command "
    "for the same run.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def explain(
    context: click.Context, /, *, global_rank: int, everything: bool, of_settings: bool, as_json: bool, **options: Any
) -> None:
    """Explain a rank's variables and the trainer's settings.

    The other options and COMMAND are as for `tlaunch run`. Nothing is started. The output has the variables that
    tlaunch sets, and conflicting ones of other launchers. Secrets are masked. If COMMAND is only the name of a setting,
    such as train.learning_rate, or of a section, such as train, the output has its meaning, default and values. If COMMAND
    is only the name of a variable, such as OMP_NUM_THREADS, the output has only this variable.
    """
    is_rank_given = context.get_parameter_source("global_rank") is ParameterSource.COMMANDLINE
    given = {"--rank": is_rank_given, "--all": everything, "--settings": of_settings}
    only = _variable_in(options["command"])
    if only is not None:
        options["command"], everything = (), True
    if (text := _text_of_setting(options["command"], options["recipe"], options["env"], as_json=as_json)) is not None:
        for name in filter(given.get, given):
            raise UsageError(
                f"{options['command'][0]} is a setting, which cannot be combined with {name}", hint="leave it out"
            )
        write_out(text)
        return
    if of_settings:
        _check_only_settings(given, only)
    chosen = for_engine(RunOptions(**{**given_last(context, options), "dry_run": True, "detach": False}), os.environ)
    prepared = with_network(prepare(chosen, os.environ, needs_data=not of_settings and only is None))
    for note in prepared.notes:
        say(note)
    request, own_table = prepared.request, None
    if of_settings:
        write_out(_text_of_all_settings(chosen, prepared, as_json=as_json))
        return
    if (first := first_allotment(request)) is not None:
        say(attempt_text(0, first, request.cluster.servers))
        request, own_table = attempt_request(request, first), attempt_table(0)
    if global_rank >= request.layout.world_size:
        raise UsageError(f"--rank {global_rank}: choose from 0 to {request.layout.world_size - 1} ({request.layout})")
    # As in a run that starts now.
    name = free_name(request.runs_dir, prepared.timed_name)
    rank = draft(request, name=name, master_port=chosen.master_port or 0, own_table=own_table)[global_rank]
    explained = _explained(rank, request, port_given=bool(chosen.master_port), everything=everything)
    _write(explained, only, as_json=as_json)


explain.params += [option for option in RUN_PARAMETERS if option.name not in NOT_TAKEN]
explain.groups, explain.rare, explain.is_like_run = RUN_GROUPS, RARE | NO_EFFECT, True


def _write(explained: Explained, only: str | None, *, as_json: bool) -> None:
    """Write everything about a rank, or `only` one variable."""
    if only is not None:
        explained = _with_one(explained, only)
    if as_json:
        write_out(json_text(_to_json(explained)))
    else:
        write_lines(_lines(explained) if only is None else _table(explained.variables))


def _is_variable(word: str) -> bool:
    """Return True if COMMAND is the name of an environment variable, and not a program."""
    is_known = "_" in word or word == RANK or word in os.environ
    return is_known and _VARIABLE.fullmatch(word) is not None and shutil.which(word) is None


def _variable_in(command: Sequence[str]) -> str | None:
    """Return the environment variable that COMMAND names, or None if it is something else."""
    return command[0] if len(command) == 1 and _is_variable(command[0]) else None


def _check_only_settings(given: Mapping[str, bool], variable: str | None) -> None:
    """Raise UsageError if --settings is combined with an option or a name of environment variables."""
    for name in (*filter(given.get, ("--rank", "--all")), *filter(None, (variable,))):
        raise UsageError(
            f"--settings cannot be combined with {name}: {name} applies only to environment variables of ranks"
        )


def _text_of_all_settings(chosen: RunOptions, prepared: Prepared, *, as_json: bool) -> str:
    """Return the settings of the bundled trainer as a --config file or as JSON. Raises UsageError for a COMMAND."""
    if prepared.program.recipe is None:
        raise UsageError("--settings is only for the bundled trainer: remove --settings or COMMAND")
    # only --settings needs it
    from launcher.cli.training.trainer_program import effective_settings, toml_lines, without_settings

    settings = effective_settings(chosen, prepared.request.layout)
    if as_json:
        return json_text({each.name: {name: getattr(each, name) for name in SETTING_FIELDS} for each in settings})
    return "\n".join(toml_lines(settings, as_words(without_settings(chosen)))).rstrip("\n") + "\n"


def _with_one(explained: Explained, name: str) -> Explained:
    """Leave out all variables except `name`. Raises UsageError if the rank does not have it."""
    found = tuple(one for one in explained.variables if one.name == name)
    if not found:
        rank = explained.draft.rank.global_rank
        hint = f"set it with `--env {name}=VALUE`, or list the variables of a rank with `tlaunch explain --devices N`"
        raise UsageError(f"rank {rank} does not get a variable {name}", hint=hint)
    return replace(explained, variables=found, conflicts=())


def _text_of_setting(command: Sequence[str], recipe: str | None, env: Sequence[str], *, as_json: bool) -> str | None:
    """Return the text about the settings that COMMAND names, or None if it is a program."""
    is_phrase = all(map(str.isalpha, command)) and not shutil.which(next(iter(command), ""))  # such as `learning rate`
    if not command or (len(command) > 1 and not is_phrase):
        return None
    word = "_".join(command)
    if re.fullmatch(r"RT\d{3}", word):
        raise UsageError(f"`{word}` is a rank table code, not a program", hint=f"use `tlaunch table explain {word}`")
    from launcher.cli.training import setting_text  # not needed for most programs

    if (found := setting_text.settings_called(word, recipe)) is None:
        is_program = not re.fullmatch(r"[A-Za-z][\w-]*", word) or shutil.which(word) or os.path.isfile(word)  # noqa: PTH113 - any word
        if len(command) > 1 or is_program or any(pair.startswith("PATH=") for pair in env):
            return None
        raise UsageError(f"{word} is neither a setting nor a program", hint=setting_text.hint_like(word, recipe))
    if recipe is None and len(found) > 1:
        say(f"note: settings of {DEFAULT_RECIPE}; for another bundled program, add --recipe NAME")
    return (
        json_text(setting_text.as_json(found))
        if as_json
        else "".join(f"{line}\n" for line in setting_text.lines_of(found, screen_of(sys.stdout)))
    )


def _explained(chosen: Draft, request: Request, *, port_given: bool, everything: bool) -> Explained:
    decided = [one for one in chosen.variables if one.value is not None or one.instead_of is not None]
    if not port_given:  # the run picks the port when it starts
        why = "chosen when the run starts"
        decided = [replace(one, value=FREE_PORT, why=why) if one.name in PORTS else one for one in decided]
    found = conflicts(request.inherited_env, {one.name: one.value for one in decided})
    kept = {one.name for conflict in found for one in conflict.found}
    known = {one.name for one in chosen.variables}
    others = [
        Variable(name, value, Origin.INHERITED, "")
        for name, value in request.inherited_env.items()
        if name not in known and (everything or name in kept)
    ]
    return Explained(chosen, request, tuple(sorted((*decided, *others), key=lambda one: one.name)), found)


def _lines(explained: Explained) -> Iterator[str]:
    """Yield the rank's position, command, cores and variables, then conflicting variables of other launchers."""
    rank, layout, share = explained.draft.rank, explained.request.layout, explained.draft.share
    place = coordinate_of(rank.global_rank, layout)
    yield printable(
        f"rank {rank.global_rank} of {layout.world_size}: device {rank.device_id} of server {rank.server_id}, "
        f"pp={place.pp} dp={place.dp} mp={place.mp}"
    )
    yield f"command: {shell_words(masked_argv(rank.argv))}"
    if share.cpus is None:
        cpus = f"not bound: {counted(explained.request.machine.core_count, 'core')} for all ranks of a server"
    else:
        cpus = f"{ranges(share.cpus)} ({share.reason})"
    yield printable(f"cpus: {cpus}")
    yield ""
    yield from _table(explained.variables)
    if explained.conflicts:
        yield ""
        for conflict in explained.conflicts:  # variables of the shell that tlaunch keeps from ranks, or passes on
            names = ", ".join(one.name for one in conflict.found)
            danger = f"{conflict.family}? With {names} from your shell, {conflict.danger}"
            if conflict.found[0].fate is Fate.KEPT:
                danger = f"warning: {names}: {conflict.danger}"
            columns = min(screen_of(sys.stdout).columns or MAX_PROSE_COLUMNS, MAX_PROSE_COLUMNS)
            yield from textwrap.wrap(printable(danger), columns, subsequent_indent="  ")


def _table(variables: Iterable[Variable]) -> Iterator[str]:
    """Yield a table of variables, wrapped at the terminal's width."""
    rows = [("NAME", "VALUE", "ORIGIN")]
    for variable in variables:
        value = REMOVED if variable.value is None else masked(variable.name, variable.value)
        origin = f"{variable.origin.value}: {variable.why}" if variable.why else variable.origin.value
        if variable.instead_of is not None:
            origin += f", was {masked(variable.name, variable.instead_of)}"
        rows.append((printable(variable.name), printable(value), printable(origin)))
    yield from wrapped_columns(rows, screen_of(sys.stdout).columns)


def _to_json(explained: Explained) -> dict[str, Any]:
    rank, share = explained.draft.rank, explained.draft.share

    def shown(variable: Variable, value: str | None) -> str | None:
        return None if value is None else masked(variable.name, value)

    return {
        "global_rank": rank.global_rank,
        "local_rank": rank.local_rank,
        "server_id": rank.server_id,
        "device_id": rank.device_id,
        "argv": masked_argv(rank.argv),
        "bind": explained.request.bind,
        "cpus": share.cpus,
        "threads": share.threads,
        "variables": [  # `value` is null if it is removed, `instead_of` if the environment had no other value
            {**encode(one), "value": shown(one, one.value), "instead_of": shown(one, one.instead_of)}
            for one in explained.variables
        ],
        "conflicts": [
            {
                "family": conflict.family,
                "danger": conflict.danger,
                "found": [{"name": one.name, "value": one.shown, "fate": one.fate.value} for one in conflict.found],
            }
            for conflict in explained.conflicts
        ],
    }
