"""`tlaunch stacks`: show the current stack of every rank of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path

import click

from launcher.cli.options.chosen_run import LIVE_RUN_HELP, active_run_argument, chosen_live, json_option
from launcher.cli.text.run_text import describe_run, shown_name
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.cli.text.verdict_text import rank_list
from launcher.cluster.coordinator_files import read_endpoint
from launcher.cluster.stack_requests import CoordinatorUnreachableError, ask_stacks
from launcher.core.codec import json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, UsageError
from launcher.core.frozen import frozen
from launcher.core.heartbeat import read_heartbeat
from launcher.core.verdict import StackGroup
from launcher.logs.terminal import printable
from launcher.runs.owner import is_of_owner
from launcher.runs.status import RunState, look
from launcher.supervise.diagnosis.rank_stacks import Target, gather, group, sentence
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.stack_collection import SurveyAnswer

EPILOG = """\b
Examples:
  tlaunch stacks
  tlaunch stacks --rank 0,3-5 --full 20261121-053712-transformer
  tlaunch stacks --json | jq '.ranks[] | select(.in_collective | not)'

Ranks with the same stack are shown as one group, small groups first, with the innermost frames of the main thread.
Python ranks that tlaunch started write their stacks themselves, even while a C call holds the interpreter lock. For
other ranks, the output has the stack if py-spy is installed, else the system call that the rank waits in. No rank is
stopped; writing a stack takes milliseconds.

The output has the ranks of all servers. You can run the command on the launcher's machine, or on any server that has
the run directory. Servers that do not answer within seconds are listed. If the run's coordinator cannot be reached,
only the ranks of this server are shown, with the reason.

Exit codes: 0; 1 none of the chosen ranks is running, or a server did not answer; 2 wrong usage, or no such run.
"""
FRAMES_SHOWN = 8

RankRange = tuple[int, int]  # first and last, inclusive


@frozen
class Seen:
    """The collected stacks, process IDs and steps of ranks, keyed by global rank."""

    pids: Mapping[int, int]
    steps: Mapping[int, int | None]
    stacks: Mapping[int, RankStack]
    unasked: Mapping[str, str] = field(default_factory=dict)  # server ID -> reason, for servers that did not answer


@click.command(epilog=EPILOG, help=f"Show the current Python stack of every rank.\n\n{LIVE_RUN_HELP}")
@click.option("--rank", "ranks", metavar="LIST", help="Show only these ranks, for example 0,3-5.")
@click.option(
    "--full", is_flag=True, help="Show all frames, and one rank's threads for each group of identical stacks."
)
@json_option
@active_run_argument
def stacks(*, run: str | None, ranks: str | None, full: bool, as_json: bool, runs_dir: Path) -> int:
    wanted = None if ranks is None else parse_ranks(ranks)
    state = look(chosen_live(runs_dir, run))
    seen = _seen(state, wanted)
    if ended := seen.pids.keys() - seen.stacks.keys():
        say(_ended(ended))
    groups = group(seen.stacks, seen.steps)
    whole = sentence(groups, whole=not seen.unasked)
    if as_json:
        content = {
            "name": state.name,
            "directory": str(state.run_dir.root),
            "sentence": whole,
            "groups": [asdict(group) for group in groups],
            "ranks": [
                {"global_rank": rank, "pid": seen.pids[rank], "step": seen.steps[rank], **asdict(stack)}
                for rank, stack in seen.stacks.items()
            ],
            "not_shown": dict(seen.unasked),
        }
        write_out(json_text(content))
    else:
        write_lines(printable(line) for line in _lines(f"{shown_name(state)}: {whole}", seen, groups, full=full))
    for server, why in seen.unasked.items():
        say(f"{server}: not shown: {why}")
    return EXIT_FAILURE if seen.unasked else EXIT_OK


def parse_ranks(text: str) -> tuple[RankRange, ...]:
    """Parse a list of ranks into ranges. Raises UsageError if the list is invalid.

    >>> parse_ranks("0,3-5")
    ((0, 0), (3, 5))
    """
    ranges = []
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise UsageError(
                f"--rank {text!r}: {part.strip()!r} is not a rank or a range of ranks", hint="use a list such as 0,3-5"
            )
        ranges.append((int(first), int(last)))
    return tuple(ranges)


def _seen(state: RunState, wanted: tuple[RankRange, ...] | None) -> Seen:
    """Return the stacks from all servers, or only from this machine if the coordinator cannot be reached."""
    endpoint = None if state.state.over else read_endpoint(state.run_dir)
    if endpoint is None:
        return _gathered(state, _living(state, wanted))
    try:
        return _answered(state, wanted, *ask_stacks(endpoint, wanted))
    except CoordinatorUnreachableError as error:
        try:
            here = _gathered(state, _living(state, wanted))
        except TlaunchError as nothing:
            raise TlaunchError(f"{nothing.message}; stacks of other servers are missing: {error.message}") from error
        return replace(here, unasked={"other servers": error.message})


def _answered(
    state: RunState, wanted: tuple[RankRange, ...] | None, answers: Iterable[SurveyAnswer], silent: Mapping[str, str]
) -> Seen:
    """Return the stacks that agents collected. Raises TlaunchError if there are none."""
    answers = tuple(answers)
    ranks = sorted((rank for answer in answers for rank in answer.ranks), key=lambda rank: rank.global_rank)
    unasked = {f"server {server}": why for server, why in silent.items()}
    unasked |= {f"a server ({number})": answer.trouble for number, answer in enumerate(answers) if answer.trouble}
    stacks = {rank.global_rank: rank.stack for rank in ranks if rank.stack is not None}
    if stacks:
        steps = {rank.global_rank: rank.step for rank in ranks}
        return Seen({rank.global_rank: rank.pid for rank in ranks}, steps, stacks, unasked)
    if ranks:
        raise TlaunchError(_ended(rank.global_rank for rank in ranks))
    which = "live rank" if wanted is None else "live rank among the chosen ones"
    missing = "".join(f"; {server} is unknown: {why}" for server, why in unasked.items())
    raise TlaunchError(f"{shown_name(state)} has no {which}: it is {describe_run(state)}{missing}")


def _living(state: RunState, wanted: tuple[RankRange, ...] | None) -> dict[int, int]:
    """Return the PIDs of the live ranks on this machine. Raises TlaunchError if there are none."""
    living = {
        look.global_rank: look.process.pid
        for look in state.ranks
        if look.process
        and look.process.lives
        and is_of_owner(look.process, state.owner, state.run_dir.train_log(look.global_rank))
    }
    if not living:
        raise TlaunchError(f"{shown_name(state)} has no live rank on this machine ({describe_run(state)})")
    if wanted is None:
        return living
    chosen_ones = {rank: pid for rank, pid in living.items() if any(first <= rank <= last for first, last in wanted)}
    if not chosen_ones:
        raise TlaunchError(
            f"none of the ranks in --rank is alive; live ranks of {shown_name(state)}: {rank_list(living)}"
        )
    return chosen_ones


def _gathered(state: RunState, pids: Mapping[int, int]) -> Seen:
    """Collect the stacks of the ranks in `pids`. Raises TlaunchError if all of these ranks have ended."""
    beats = {global_rank: read_heartbeat(state.run_dir.heartbeat(global_rank)) for global_rank in pids}
    targets = {global_rank: Target(pid, state.run_dir.stacks_log(global_rank)) for global_rank, pid in pids.items()}
    answers = gather(targets)
    if not answers:
        raise TlaunchError(_ended(pids))
    steps = {global_rank: found.beat.step if found else None for global_rank, found in beats.items()}
    return Seen(pids, steps, answers)


def _ended(global_ranks: Iterable[int]) -> str:
    return f"{rank_list(global_ranks)} ended before answering"


def _lines(title: str, seen: Seen, groups: tuple[StackGroup, ...], *, full: bool) -> Iterator[str]:
    yield title
    for each in groups:
        yield from ("", f"{rank_list(each.global_ranks)}: {each.doing}", *_frame_lines(each.frames, full=full))
        for frames in seen.stacks[each.global_ranks[0]].others if full else ():
            yield from (f"  another thread of rank {each.global_ranks[0]}:", *_frame_lines(frames, full=True))


def _frame_lines(frames: tuple[str, ...], *, full: bool) -> Iterator[str]:
    shown = frames if full or len(frames) <= FRAMES_SHOWN + 1 else frames[:FRAMES_SHOWN]
    yield from (f"    {frame}" for frame in shown)
    if len(shown) < len(frames):
        yield f"    ... {len(frames) - len(shown)} more, shown by --full"
