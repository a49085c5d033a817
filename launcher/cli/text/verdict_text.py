"""A verdict in words: who failed first, where and why that is believed, and who only followed.

rank 3: ValueError: no such word, at train.py:88 in step
certain: its exception came 0.204 s before any other failure
server 127.0.0.1, device 3, process 4711, exit code 1
| Traceback (most recent call last):
| ...
consequences:
ranks 0-2: RuntimeError: Connection closed by peer (lost rank 3)
stacks, before anything was ended:
ranks 0-2: in all_reduce, called at train.py:40 in step
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from launcher.cli.text.style import FAINT, PLAIN, STRONG, Screen
from launcher.core.text import counted, listed, ranges
from launcher.core.verdict import Failure, Role, Verdict
from launcher.logs.terminal import one_line, printable, shortened
from launcher.logs.traceback_blocks import FRAME
from launcher.preload.frames import is_of_program

TRACEBACK_LINES = 12  # train.log has them all
MAX_MESSAGE_LINES = 8  # of a message that starts above them
MAX_FRAME_LINES = 5  # of one frame in them: a statement may have many
_MARGIN = re.compile(r"^ {2,}\| (?= )")  # of the frames of a group of exceptions
_BELOW_A_FRAME = "    "  # its line of code, and what marks a part of that
FRAMES = 8  # the innermost ones of a group of ranks
SIGNALLED = 128  # and the signal's number: the code of a shell
_COPIED = "hint: "  # a person may copy what it says to type, and no line is broken there
MAX_WAYS = 8  # of failing that are listed
# The beginning of what is raised: what to do, for what a program expects and this run could have given it.
_NO_INPUT = (
    "ranks have /dev/null as standard input; to debug one, start the program without tlaunch, or use `tlaunch stacks`"
)
_NO_TLAUNCH = "install tlaunch in the ranks' own Python, or catch the ImportError to run without it"
HINTS = {
    "ModuleNotFoundError: No module named 'tlaunch'": _NO_TLAUNCH,
    "ModuleNotFoundError: No module named 'launcher'": _NO_TLAUNCH,
    "bdb.BdbQuit": _NO_INPUT,
    "EOFError: EOF when reading a line": _NO_INPUT,
    "RuntimeError: Maybe you are trying to call 'mindspore.communication.init()'": "--mindspore cluster starts the scheduler "
    "at which ranks of MindSpore meet; without it, a program is only seen to need one where its own Python files import mindspore "
    "and call `init()` or `init_process_group()`",
    "KeyError: 'RANK_TABLE_FILE'": "RANK_TABLE_FILE is set only where there is a rank table: `tlaunch table generate "
    "--devices N -o rank_table.json` makes one for this machine, --rank-table rank_table.json gives it to ranks",
}
NUMBER = re.compile(r"\d+(\.\d+)?")


def render(
    verdict: Verdict, place: Callable[[int], str] | None = None, *, traceback: bool = True, screen: Screen = PLAIN, lead: str = ""
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of one verdict, the headline first, behind `lead`; safe to show on `screen`.

    `place` says for a global rank where and what it was ("server 127.0.0.1, device 3, process 4711").
    """
    first = screen.wrapped(f"{lead}{headline(verdict)}")
    yield f"{first[: len(lead)]}{screen.paint(first[len(lead) :], STRONG)}"
    for line in map(shortened, _details(verdict, place, traceback=traceback)):
        yield line if line.startswith(_COPIED) else screen.wrapped(line)
    followed = [failure for failure in verdict.failures if failure.role is Role.CONSEQUENCE]
    for line in map(shortened, _listed("consequences:", followed)):
        yield screen.paint(screen.wrapped(line), FAINT)
    yield from map(screen.wrapped, map(shortened, _stacks(verdict)))


def _details(verdict: Verdict, place: Callable[[int], str] | None, *, traceback: bool) -> list[str]:
    failure = culprit_failure(verdict)
    lines = [f"  {verdict.confidence.value}: {printable(failure.reason if failure else verdict.reason)}"]
    if failure is not None:
        lines += _about(failure, place, traceback=traceback)
    others = [cause for cause in verdict.causes if cause is not failure]
    lines += _listed("failed of their own, too:" if failure else "failed:", others)
    raised = dict.fromkeys(cause.what for cause in verdict.causes)
    lines += [f"hint: {hint}" for begins, hint in HINTS.items() if any(what.startswith(begins) for what in raised)]
    return lines


def _stacks(verdict: Verdict) -> Iterator[str]:
    if verdict.stacks:
        yield "stacks, before anything was ended:"
    for number, group in enumerate(verdict.stacks):
        yield printable(f"  {rank_list(group.global_ranks)}: {one_line(group.doing)}")
        if number < len(verdict.stacks) - 1 or len(verdict.stacks) == 1:  # the largest group waits, as its phrase says
            yield from (printable(f"      {frame}") for frame in group.frames[:FRAMES])


def headline(verdict: Verdict) -> str:
    """Return rank, error and place on one line: "rank 3: ValueError: no such word, at train.py:88 in step"."""
    failure = culprit_failure(verdict)
    if failure is not None:
        return shortened(f"rank {failure.global_rank}: {_what(failure)}")
    if verdict.culprit is not None:
        return f"rank {verdict.culprit}"
    if verdict.scheduler is not None:
        return shortened(f"MindSpore's scheduler: {one_line(verdict.scheduler)}")
    if verdict.signalled is not None:
        return shortened(_what(verdict.signalled))
    if not verdict.apart:
        return shortened(_loss(verdict))
    return shortened(f"no rank can be named: {_broken_way(verdict)}")


def _broken_way(verdict: Verdict) -> str:
    (one, other), *more = verdict.apart
    pairs = f"{len(more)} more pairs"
    if verdict.loses_large:
        between = f"between servers {one} and {other}{f' and {pairs}' if more else ''}"
        return f"large packets {f'from or to server {verdict.server}' if verdict.server else between} are lost"
    if verdict.server is not None:
        return f"server {verdict.server} is cut off from the others"
    return f"servers {one} and {other} do not reach each other{f', nor do {pairs}' if more else ''}"


def _loss(verdict: Verdict) -> str:
    if verdict.stood_still_s is not None:
        return f"the launcher's machine stood still for {verdict.stood_still_s:.0f} s, and its servers gave it up"
    if verdict.servers:
        return f"servers {listed(verdict.servers)} were lost"
    return "no rank can be named" if verdict.server is None else f"server {verdict.server} was lost"


def culprit_failure(verdict: Verdict) -> Failure | None:
    """Return what is known of the rank that is to blame; None where no rank can be named."""
    return next((failure for failure in verdict.failures if failure.global_rank == verdict.culprit), None)


def describe_status(status: int) -> str:
    """Return how a process ended, its status as in subprocess: "exit code 7", "SIGKILL (signal 9)".

    Shells report the signal that ended what they ran by a code: "exit code 137 (128 + SIGKILL)".
    """
    if status >= 0:
        with suppress(ValueError):
            return f"exit code {status} ({SIGNALLED} + {signal.Signals(status - SIGNALLED).name})"
        return f"exit code {status}"
    try:
        return f"{signal.Signals(-status).name} (signal {-status})"
    except ValueError:
        return f"signal {-status}"


def rank_list(global_ranks: Iterable[int]) -> str:
    """Return "rank 3", "ranks 0-2,7"."""
    ordered = sorted(global_ranks)
    return f"rank{'' if len(ordered) == 1 else 's'} {ranges(ordered)}"


def _what(failure: Failure) -> str:
    what = failure.what
    if failure.status is not None and what == f"exit code {failure.status}":
        what = describe_status(failure.status)
    where = f", at {failure.where}" if failure.where and failure.where not in what else ""
    if where and not what.endswith(".."):
        what = what.removesuffix(".")
    return one_line(f"{what}{where}")


def _about(failure: Failure, place: Callable[[int], str] | None, *, traceback: bool) -> Iterator[str]:
    details = [place(failure.global_rank)] if place else []
    if failure.status is not None and (how := describe_status(failure.status)) not in {_what(failure), failure.what}:
        details.append(how)
    if known := [detail for detail in details if detail]:
        yield f"  {printable(', '.join(known))}"
    if traceback and failure.traceback:
        yield from (f"  | {printable(line)}" for line in _excerpt(failure.traceback.rstrip().split("\n")))


def _excerpt(lines: Sequence[str]) -> list[str]:
    """Return the last lines of a traceback, and before them the innermost frame of the program's own code.

    That frame mostly is above those of a library, which are many where it calls itself through several layers.
    """
    begin = _start_of_message(lines, max(0, len(lines) - TRACEBACK_LINES))
    plain = [_MARGIN.sub("", line) for line in lines]
    frames = [index for index, line in enumerate(plain) if FRAME.match(line)]
    own = next((index for index in reversed(frames) if is_of_program(_file_in(plain[index]))), None)
    if own is None or own >= begin:
        return list(lines[begin:])
    below = range(own + 1, own + MAX_FRAME_LINES)
    end = next((index for index in below if not plain[index].startswith(_BELOW_A_FRAME)), below.stop)
    begin += end - own + 1  # for that frame, and for the line that says how many are left out
    begin = next((index for index in frames if index >= begin), begin)
    return [*lines[own:end], f"  [{counted(begin - end, 'line')} left out]", *lines[begin:]]


def _start_of_message(lines: Sequence[str], begin: int) -> int:
    """Return where the message that holds line `begin` starts; `begin` itself if that is far above or it holds none.

    Notes follow the message. Without it they do not say which exception they are of.
    """
    start = begin
    while start and not lines[start].startswith(" ") and not lines[start - 1].startswith(" "):
        start -= 1
    return start if begin - start <= MAX_MESSAGE_LINES else begin


def _file_in(frame: str) -> str:
    match = FRAME.match(frame)
    return match["file"] if match else ""


def _listed(title: str, failures: Iterable[Failure]) -> Iterator[str]:
    """Yield ranks that failed alike on one line: numbers in a text (ports, times) make no difference, the place does."""
    alike: dict[tuple[str, str | None], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((NUMBER.sub("#", _what(failure)), failure.where), []).append(failure)
    if alike:
        yield title
    for group in list(alike.values())[:MAX_WAYS]:
        first = "" if len({failure.reason for failure in group}) == 1 else "the first: "
        reason = f" ({first}{group[0].reason})" if group[0].reason else ""
        yield printable(f"  {rank_list(failure.global_rank for failure in group)}: {_what(group[0])}{reason}")
    if rest := [failure.global_rank for group in list(alike.values())[MAX_WAYS:] for failure in group]:
        yield f"  {rank_list(rest)}: in other ways"
