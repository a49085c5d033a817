"""The text of a verdict: which rank failed first, where, the evidence, and which ranks failed as a consequence.

rank 3: ValueError: no such word, at train.py:88 in step
certain: its exception came 0.204 s before any other failure
server 127.0.0.1, device 3, process 4711, exit code 1
| Traceback (most recent call last):
| ...
consequences:
ranks 0-2: RuntimeError: Connection closed by peer (lost rank 3)
stacks, before the ranks were stopped:
ranks 0-2: in all_reduce, called at train.py:40 in step
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from launcher.cli.text.columns import columns_of, cut_off
from launcher.cli.text.rank_rows import grouped
from launcher.cli.text.style import FAINT, PLAIN, STRONG, Screen
from launcher.core.events import NotExiting
from launcher.core.text import counted, listed, ranges
from launcher.core.verdict import Failure, Role, Verdict
from launcher.logs.terminal import one_line, printable, shortened
from launcher.logs.traceback_blocks import FRAME
from launcher.preload.frames import is_of_program

TRACEBACK_LINES = 12  # train.log has all lines
MAX_MESSAGE_LINES = 8  # more lines to show a complete message
MAX_FRAME_LINES = 5  # of one frame, whose statement may have many lines
_MARGIN = re.compile(r"^ {2,}\| (?= )")  # of frames in an exception group
_BELOW_A_FRAME = "    "  # indentation of a frame's code and its markers
FRAMES, FEW_FRAMES = 8, 3  # innermost frames of a group of ranks
SIGNALLED = 128  # a shell's exit code is 128 + the signal
_COPIED = "hint: "  # hints are not wrapped, so that commands can be copied
MAX_WAYS = 8  # kinds of failures that are listed
MIN_COLUMNS = 40  # of a shortened error
_SOURCE_FILE = re.compile(r"\[/\S+:\d+\](?= )")  # of gloo and torch: "[/pytorch/third_party/gloo/.../pair.cc:553]"
# Beginning of an exception: the hint.
_NO_INPUT = "add `--stdin RANK` to connect one rank to your terminal; standard input of the other ranks is /dev/null"
_NO_STDIN = "to connect one rank to your terminal, use `tlaunch run --stdin RANK` on one server and in the foreground"
_NO_TLAUNCH = "install tlaunch in the ranks' Python environment, or catch the ImportError"
HINTS = {
    "ModuleNotFoundError: No module named 'tlaunch'": _NO_TLAUNCH,
    "ModuleNotFoundError: No module named 'launcher'": _NO_TLAUNCH,
    "torch.distributed.DistNetworkError: The server socket has failed to listen": "leave out init_method, or use "
    "init_method='env://': tlaunch sets MASTER_ADDR, and MASTER_PORT to a free port",
    "bdb.BdbQuit": _NO_INPUT,
    "EOFError: EOF when reading a line": _NO_INPUT,
    "RuntimeError: Maybe you are trying to call 'mindspore.communication.init()'": "add --mindspore cluster to start MindSpore's "
    "scheduler; tlaunch starts it by itself only if the program's own Python files import mindspore and call `init()` or "
    "`init_process_group()`",
    "KeyError: 'RANK_TABLE_FILE'": "create a rank table with `tlaunch table generate --devices N -o rank_table.json`, and add "
    "--rank-table rank_table.json, which sets RANK_TABLE_FILE",
}
NUMBER = re.compile(r"\d+(\.\d+)?")


def render(
    verdict: Verdict, place: Callable[[int], str] | None = None, *, traceback: bool = True, screen: Screen = PLAIN, lead: str = "",
    stdin: int | None = None, offers_stdin: bool = True, brief: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of a verdict. The first line is `lead` followed by the headline.

    `place` describes a global rank: "server 127.0.0.1, device 3, process 4711". `stdin` is the rank of --stdin, and
    `offers_stdin` means that the same command could use it. `brief` shortens consequences and stacks on a terminal.
    """
    first = screen.wrapped(f"{lead}{headline(verdict)}")
    yield f"{first[: len(lead)]}{screen.paint(first[len(lead) :], STRONG)}"
    for line in map(shortened, _details(verdict, place, traceback=traceback, stdin=stdin, offers_stdin=offers_stdin)):
        yield line if line.startswith(_COPIED) else screen.wrapped(line)
    followed = [failure for failure in verdict.failures if failure.role is Role.CONSEQUENCE]
    for line in map(shortened, _listed("consequences:", followed, screen.columns if brief else None)):
        yield screen.paint(screen.wrapped(line), FAINT)
    yield from map(screen.wrapped, map(shortened, _stacks(verdict, FEW_FRAMES if brief and screen.columns else FRAMES)))


def _details(
    verdict: Verdict, place: Callable[[int], str] | None, *, traceback: bool, stdin: int | None, offers_stdin: bool
) -> list[str]:
    failure = culprit_failure(verdict)
    lines = [f"  {verdict.confidence.value}: {printable(failure.reason if failure else verdict.reason)}"]
    if failure is not None:
        lines += _about(failure, place, traceback=traceback)
    others = [cause for cause in verdict.causes if cause is not failure]
    lines += _listed("also failed independently:" if failure else "failed:", others)
    raised = dict.fromkeys(cause.what for cause in verdict.causes)
    hints = dict.fromkeys(hint for begins, hint in HINTS.items() if any(what.startswith(begins) for what in raised))
    if stdin is not None and stdin == verdict.culprit:  # it read the end of its input, or left the debugger
        hints.pop(_NO_INPUT, None)
    for hint in hints:
        told = _NO_STDIN if hint == _NO_INPUT and not offers_stdin else hint
        lines.append(
            f"hint: {told if verdict.culprit is None else told.replace('--stdin RANK', f'--stdin {verdict.culprit}')}"
        )
    return lines


def _stacks(verdict: Verdict, frames: int) -> Iterator[str]:
    if verdict.stacks:
        yield "stacks, before the ranks were stopped:"
    for number, group in enumerate(verdict.stacks):
        yield printable(f"  {rank_list(group.global_ranks)}: {one_line(group.doing)}")
        if number < len(verdict.stacks) - 1 or len(verdict.stacks) == 1:  # the largest group only waits for others
            yield from (printable(f"      {frame}") for frame in group.frames[:frames])


def headline(verdict: Verdict) -> str:
    """Return a line with rank, error and place: "rank 3: ValueError: no such word, at train.py:88 in step"."""
    failure = culprit_failure(verdict)
    if failure is not None:
        return shortened(f"rank {failure.global_rank}: {_what(failure)}")
    if verdict.culprit is not None:
        return f"rank {verdict.culprit}"
    if verdict.scheduler is not None:
        return shortened(f"MindSpore's scheduler: {one_line(verdict.scheduler)}")
    if verdict.signalled is not None:
        return shortened(_what(verdict.signalled))
    return shortened(_loss(verdict))


def _loss(verdict: Verdict) -> str:
    if verdict.stood_still_s is not None and not verdict.apart:
        return f"the launcher's machine stalled for {verdict.stood_still_s:.0f} s, so the other servers stopped their ranks"
    if verdict.servers and not verdict.apart:
        return f"servers {listed(verdict.servers)} were lost"
    if not verdict.apart:
        return "no single rank is to blame" if verdict.server is None else f"server {verdict.server} was lost"
    return f"no single rank is to blame: {_broken_way(verdict)}"


def _broken_way(verdict: Verdict) -> str:
    (one, other), *more = verdict.apart
    pairs = f"{len(more)} more pairs"
    if verdict.loses_large:
        between = f"between servers {one} and {other}{f' and {pairs}' if more else ''}"
        return f"large packets {f'from or to server {verdict.server}' if verdict.server else between} are lost"
    if verdict.server is not None:
        return f"server {verdict.server} is cut off from the others"
    return f"servers {one} and {other} cannot reach each other{f' (and {pairs})' if more else ''}"


def culprit_failure(verdict: Verdict) -> Failure | None:
    """Return the failure of the culprit, or None if no single rank is to blame."""
    return next((failure for failure in verdict.failures if failure.global_rank == verdict.culprit), None)


def describe_status(status: int) -> str:
    """Describe the exit status of a process (negative for a signal): "exit code 7", "SIGKILL (signal 9)".

    Shells report a signal as an exit code: "exit code 137 (128 + SIGKILL)".
    """
    if status >= 0:
        with suppress(ValueError):
            return f"exit code {status} ({SIGNALLED} + {signal.Signals(status - SIGNALLED).name})"
        return f"exit code {status}"
    name = signal_name(-status)
    return name if name.startswith("signal ") else f"{name} (signal {-status})"


def signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return f"signal {number}"


def rank_list(global_ranks: Iterable[int]) -> str:
    """Format ranks: "rank 3", "ranks 0-2,7"."""
    ordered = sorted(global_ranks)
    return f"rank{'' if len(ordered) == 1 else 's'} {ranges(ordered)}"


def about_not_exiting(failed: Iterable[NotExiting]) -> Iterator[str]:
    """Yield a line for each kind of failure of ranks that do not exit."""
    for group in grouped(failed, lambda one: NUMBER.sub("#", one.what)):
        one = len(group) == 1
        ranks = rank_list(each.global_rank for each in group)
        still = f"if {'it is' if one else 'one of them is'} still alive {group[0].grace_s:g} s after its failure"
        what = one_line(group[0].what)
        yield f"{ranks} failed but {'does' if one else 'do'} not exit: {what}; tlaunch ends the run {still}"


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
        yield from (f"  | {printable(line)}" for line in excerpt(failure.traceback.rstrip().split("\n")))


def excerpt(lines: Sequence[str]) -> list[str]:
    """Return the last lines of a traceback and the innermost frame of the user's code.

    That frame may be far above, followed by many frames of libraries.
    """
    begin = _start_of_message(lines, max(0, len(lines) - TRACEBACK_LINES))
    plain = [_MARGIN.sub("", line) for line in lines]
    files = {index: found["file"] for index, line in enumerate(plain) if (found := FRAME.match(line))}
    own = next((index for index in reversed(files) if is_of_program(files[index])), None)
    if own is None or own >= begin:
        return list(lines[begin:])
    below = range(own + 1, own + MAX_FRAME_LINES)
    end = next((index for index in below if not plain[index].startswith(_BELOW_A_FRAME)), below.stop)
    begin += end - own + 1  # room for that frame and for the line about omitted lines
    begin = next((index for index in files if index >= begin), begin)
    return [*lines[own:end], f"  [{counted(begin - end, 'line')} left out]", *lines[begin:]]


def _start_of_message(lines: Sequence[str], begin: int) -> int:
    """Find the exception message that contains line `begin`, and return the index of its first line.

    Return `begin` if that line is not part of a message, or if the message starts far above. An exception's notes
    follow its message and are useless without it.
    """
    start = begin
    while start and not lines[start].startswith(" ") and not lines[start - 1].startswith(" "):
        start -= 1
    return start if begin - start <= MAX_MESSAGE_LINES else begin


def _listed(title: str, failures: Iterable[Failure], columns: int | None = None) -> Iterator[str]:
    """Yield a line for each kind of failure, with the ranks that failed in this way.

    `columns` is the width of a terminal: errors are shortened so that each line takes about one row.
    Failures are of one kind if they happened at the same place and their texts differ only in numbers.
    """
    alike: dict[tuple[str, str | None], list[Failure]] = {}
    for failure in failures:
        alike.setdefault((NUMBER.sub("#", _what(failure)), failure.where), []).append(failure)
    if alike:
        yield title
    for group in list(alike.values())[:MAX_WAYS]:
        first = "" if len({failure.reason for failure in group}) == 1 else f"rank {group[0].global_rank}: "
        reason = f" ({first}{group[0].reason})" if group[0].reason else ""
        ranks, what = rank_list(failure.global_rank for failure in group), _what(group[0])
        if columns is not None:
            room = columns - columns_of(f"  {ranks}: {reason}")
            what = cut_off(_SOURCE_FILE.sub("[...]", what), max(MIN_COLUMNS, room))
        yield printable(f"  {ranks}: {what}{reason}")
    if rest := [failure.global_rank for group in list(alike.values())[MAX_WAYS:] for failure in group]:
        yield f"  {rank_list(rest)}: other failures"
