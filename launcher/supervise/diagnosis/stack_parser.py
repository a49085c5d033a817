"""The parser of stacks: what a rank was doing, read from a dump of its Python stacks, said in one phrase.

Dumps come from faulthandler (Python 3.8 to 3.14, plain text, perhaps cut off anywhere) or from `py-spy dump --json`.
Both list the innermost frame of each thread first.
"""

from __future__ import annotations

import json
import os
import re
from itertools import takewhile
from typing import Any, Literal

from launcher.core.frozen import frozen
from launcher.supervise.diagnosis.sources import Sources

State = Literal["running", "stopped", "uninterruptible", "silent"]

MAX_SOURCE = 80  # characters shown of a source line
_MAX_LINES = 10**9

_HEADER = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):|Stack \(most recent .*\):")
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_OTHERS_CUT = "..."  # faulthandler shows 100 threads, the newest first: the main thread is not among them

# Not the user's own: the standard library, installed packages, what Python or tlaunch put below the program.
_FOREIGN = re.compile(
    r"/lib(?:64)?/python\d(?:\.\d+)?t?/|/python\d+\.zip/|/(?:site|dist)-packages/|^<frozen |/launcher/preload/"
    r"|/torch/(?:distributed|nn|autograd|utils)/"
)
_BUNDLED = "/launcher/trainer/"  # wherever it is installed, it is the program that the user chose
_COMMUNICATION = re.compile(
    r"/(?:torch/distributed|torch_npu/distributed|mindspore/communication|mpi4py|horovod|hccl)/"
)
# What communication libraries call such functions, wherever they are installed.
_COLLECTIVE_NAME = re.compile(
    r"_?(?:i?all_?reduce|i?all_?gather|i?all_?to_?all|i?reduce_?scatter|broadcast|init_process_group|monitored_barrier"
    r"|new_group|destroy_process_group|batch_isend_irecv|TCPStore|barrier)(?:_\w+|v|w)?",
    re.IGNORECASE,
)
# In a source line: names as above, `wait` of whatever C object, and what a communicator's methods are called.
_COLLECTIVE_CALL = re.compile(
    r"\b(i?all_?reduce\w*|i?all_?gather\w*|i?all_?to_?all\w*|i?reduce_?scatter\w*|i?broadcast\w*|i?bcast|i?barrier"
    r"|init_process_group|monitored_barrier|TCPStore|wait|wait_?all"
    r"|(?:(?<=dist\.)|(?<=comm\.)|(?<=world\.)|(?<=group\.))(?!get_|is_|rank\b|size\b)\w+)\s*\(",
    re.IGNORECASE,
)
_SLEEP_CALL = re.compile(r"\bsleep\s*\(")
_WRAPPERS = frozenset({"wrapper", "wrapped", "decorator", "inner", "__call__", "<lambda>"})


@frozen
class Frame:
    file: str
    line: int | None
    function: str

    def shown(self, parts: int) -> str:
        """With the last `parts` parts of the file's path: "train.py:40 in step"."""
        name = "/".join(self.file.split("/")[-parts:])
        return f"{name}:{'?' if self.line is None else self.line} in {self.function}"

    @property
    def own(self) -> bool:
        """Return whether this is the user's code."""
        return _BUNDLED in self.file or not _FOREIGN.search(self.file)

    @property
    def collective(self) -> bool:
        """Return whether it waits for other ranks, as far as file and name tell; of the user's own code they do not."""
        if _COMMUNICATION.search(self.file):
            return True
        return not self.own and bool(_COLLECTIVE_NAME.fullmatch(self.function)) and "-packages/" in self.file


Frames = tuple[Frame, ...]  # of one thread, innermost first


@frozen
class Dump:
    """The Python stacks of one process. Invariant: `main` is none of `others`."""

    main: Frames  # empty where the dump does not show that thread
    others: tuple[Frames, ...] = ()


@frozen
class RankStack:
    """The stack of one rank when it was asked for."""

    state: State
    doing: str  # "in all_reduce, called at train.py:40 in step", "at data.py:88 in load: time.sleep(30)"
    place: str = ""  # the innermost frame of the user's own code: "data.py:88 in load"; empty without Python frames
    in_collective: bool = False
    frames: tuple[str, ...] = ()  # of the main thread, innermost first: "project/train.py:40 in step"
    others: tuple[tuple[str, ...], ...] = ()  # the same of every other thread that Python knows

    @property
    def other_threads(self) -> int:
        return len(self.others)


def parse_faulthandler(data: bytes) -> Dump | None:
    """Return the last dump in `data`, as far as it goes; None without a frame. What is no dump is passed over."""
    whole, _, _ = data.decode("latin-1").rpartition("\n")  # a line that is cut off tells something wrong
    threads: list[list[Frame]] = []
    cut, before = False, ""
    for line in whole.split("\n"):
        if _HEADER.fullmatch(line):
            if before:  # threads of one dump are separated by an empty line, dumps are not
                threads, cut = [], False
            threads.append([])
        elif threads and (match := _FRAME.fullmatch(line)):
            threads[-1].append(_frame(match))
        cut = cut or (line == _OTHERS_CUT and not before)
        before = line
    found = tuple(tuple(thread) for thread in threads if thread)
    if not found:
        return None
    return Dump((), found) if cut else Dump(found[-1], found[:-1])  # the oldest thread comes last


def parse_py_spy(data: bytes, pid: int) -> Dump | None:
    """Return what `py-spy dump --json` tells of process `pid`; None where that is not what `data` holds."""
    try:
        threads: list[dict[str, Any]] = json.loads(data)
        main = next((thread for thread in threads if thread.get("os_thread_id") == pid), threads[-1])
        others = tuple(_py_spy_frames(thread) for thread in threads if thread is not main)
        return Dump(_py_spy_frames(main), others)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def understood(dump: Dump, sources: Sources, cwd: str = "") -> RankStack:
    """Return what a rank does that answered with `dump`; `cwd` is its working directory."""
    others = tuple(_shown(frames) for frames in dump.others)
    if not dump.main:
        return RankStack("running", "running; its main thread is hidden behind 100 others", others=others)
    place = next((frame for frame in dump.main if frame.own), dump.main[0])
    source = None if place.line is None else sources.line(os.path.join(cwd, place.file), place.line)  # noqa: PTH118
    name = _collective(dump.main, place, source)
    doing = f"in {name}, called at {place.shown(1)}" if name else _at(place, dump.main[0], source)
    return RankStack("running", doing, place.shown(1), name is not None, _shown(dump.main), others)


def _frame(match: re.Match[str]) -> Frame:
    line = match["line"]
    return Frame(
        _unescaped(match["file"] or "???"), int(line) if line.isdecimal() else None, _unescaped(match["function"])
    )


def _py_spy_frames(thread: dict[str, Any]) -> Frames:
    return tuple(
        Frame(str(frame["filename"]), _line_number(frame["line"]), str(frame["name"])) for frame in thread["frames"]
    )


def _line_number(told: Any) -> int | None:
    return told if type(told) is int and 0 < told < _MAX_LINES else None


def _unescaped(text: str) -> str:
    r"""Return a text as it was: a dump writes é as \xe9. What a terminal should not get stays as it is."""

    def char_of(match: re.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3], 16)
        return chr(code) if code < 0x110000 and chr(code).isprintable() else match[0]

    return _ESCAPE.sub(char_of, text)


def _collective(frames: Frames, place: Frame, source: str | None) -> str | None:
    """Return what the user's code called to wait for other ranks; None if it does not wait for them."""
    below = list(takewhile(lambda frame: not frame.own, frames))
    inside = [frame for frame in below if frame.collective]
    if any(frame.function == "<module>" for frame in below):  # it imports a library, be it one of collectives
        return None
    if inside:
        named = [frame.function for frame in inside if _COLLECTIVE_NAME.fullmatch(frame.function)]
        plain = [frame.function for frame in inside if frame.function not in _WRAPPERS]
        return (named or plain or [inside[0].function])[-1]
    if place is not frames[0]:
        return None
    # A library written in C has no frames: only the line that calls it tells, or else the name of the function.
    if source is None:
        return place.function if _COLLECTIVE_NAME.fullmatch(place.function) else None
    call = _COLLECTIVE_CALL.search(source)
    return call[1] if call and not _SLEEP_CALL.search(source) else None


def _at(place: Frame, innermost: Frame, source: str | None) -> str:
    if source is not None:
        shown = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 3]}..."
        return f"at {place.shown(1)}: {shown}"
    return f"at {place.shown(1)}" if place is innermost else f"at {place.shown(1)}, inside {innermost.shown(1)}"


def _shown(frames: Frames) -> tuple[str, ...]:
    """Without what Python and tlaunch put below the program: how it was started says nothing of where it is."""
    below = next((number for number, frame in enumerate(reversed(frames)) if frame.own), 0)
    return tuple(frame.shown(2) for frame in frames[: len(frames) - below])
