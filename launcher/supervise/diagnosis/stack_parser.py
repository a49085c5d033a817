"""Parses dumps of Python stacks, and describes in a phrase what a rank is doing.

Dumps come from faulthandler (Python 3.8 to 3.14, plain text, possibly truncated) or from `py-spy dump --json`. Both
list the innermost frame of each thread first.

Source lines are read without blocking on a file system that does not respond. Ranks often hang because of such a file
system, and their source files are on the same one. A process that opens a file there may hang in a way that no signal
can end. So only files on local disks and in memory are read directly. The kernel's table of mounts identifies them
without touching the files, and symbolic links are resolved one by one, as long as they stay local. Files on networks
are read in a thread that may be abandoned, and only if the caller allows time for it.
"""

from __future__ import annotations

import json
import os
import re
import stat
import threading
import time
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, Literal

from launcher.core.frozen import frozen
from launcher.core.machine.proc import mounts
from launcher.preload.frames import is_of_program

State = Literal["running", "stopped", "uninterruptible", "silent"]

MAX_SOURCE = 80  # characters shown of a source line
_MAX_LINES = 10**9
MAX_BYTES = 4 << 20  # of a source file
MAX_LINKS = 40  # as in the kernel
_LOCAL = frozenset({
    "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "erofs", "squashfs", "iso9660", "udf", "vfat",
    "exfat", "ntfs3", "tmpfs", "ramfs", "rootfs", "overlay", "aufs",
})  # fmt: skip

_HEADER = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):|Stack \(most recent .*\):")
_FRAME = re.compile(r'  File (?:"(?P<file>.*)"|\?\?\?), line (?P<line>\d{1,9}|\?\?\?) in (?P<function>.*)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
_OTHERS_CUT = "..."  # faulthandler shows only the newest 100 threads, so the main thread is missing

_SHARED_MEMORY = r"/launcher/trainer/parallel/shared_memory\.py"  # the bundled trainer's communication library
# Not the user's code, wherever it is installed.
_FOREIGN = re.compile(rf"/python\d+\.zip/|/torch/(?:distributed|nn|autograd|utils)/|{_SHARED_MEMORY}")
_BUNDLED = re.compile(rf"(?!.*{_SHARED_MEMORY}).*/launcher/trainer/")  # the user's program, wherever it is installed
_COMMUNICATION = re.compile(
    rf"/(?:torch/distributed|torch_npu/distributed|mindspore/communication|mpi4py|horovod|hccl)/|{_SHARED_MEMORY}"
)
# They may wait for other ranks without a frame of a communication library.
_MAY_WAIT = re.compile(r"-packages/(?:mindspore|torch/autograd)/")
# Names of such functions in communication libraries, wherever they are installed.
_COLLECTIVE_NAME = re.compile(
    r"_?(?:i?all_?reduce|i?all_?gather|i?all_?to_?all|i?reduce_?scatter|broadcast|init_process_group|monitored_barrier"
    r"|new_group|destroy_process_group|batch_isend_irecv|TCPStore|barrier)(?:_\w+|v|w)?",
    re.IGNORECASE,
)
# In a source line: names as above, `wait` of any C object, and methods of communicators.
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
        """Format the frame with the last `parts` components of its path: "train.py:40 in step"."""
        name = "/".join(self.file.split("/")[-parts:])
        return f"{name}:{'?' if self.line is None else self.line} in {self.function}"

    @property
    def own(self) -> bool:
        return bool(_BUNDLED.match(self.file)) or (is_of_program(self.file) and not _FOREIGN.search(self.file))

    @property
    def collective(self) -> bool:
        """True if the file or function name of the frame indicates a wait for other ranks."""
        if _COMMUNICATION.search(self.file):
            return True
        return not self.own and bool(_COLLECTIVE_NAME.fullmatch(self.function)) and "-packages/" in self.file


Frames = tuple[Frame, ...]  # of one thread, innermost first


@frozen
class Dump:
    """The Python stacks of a process: the main thread and all other threads."""

    main: Frames  # empty if the dump does not contain the main thread
    others: tuple[Frames, ...] = ()


@frozen
class RankStack:
    state: State
    doing: str  # "in all_reduce, called at train.py:40 in step", "at data.py:88 in load: time.sleep(30)"
    place: str = ""  # the innermost frame in the user's code: "data.py:88 in load"; empty without Python frames
    in_collective: bool = False
    frames: tuple[str, ...] = ()  # of the main thread, innermost first: "project/train.py:40 in step"
    others: tuple[tuple[str, ...], ...] = ()  # the same for every other Python thread
    may_wait: bool = False  # inside a library that may run a collective, such as torch's backward


def parse_faulthandler(data: bytes) -> Dump | None:
    """Return the last faulthandler dump in the output of a process, or None if it contains no frames."""
    whole, _, _ = data.decode("latin-1").rpartition("\n")  # a truncated line is misleading
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


def crash_place(log_tail: str) -> str | None:
    """Return the location of a crash according to faulthandler, preferably in the user's code."""
    _, header, dump = log_tail.rpartition("Current thread 0x")
    lines = takewhile(bool, dump.split("\n")) if header else ()
    frames = [_frame(match) for line in lines if (match := _FRAME.fullmatch(line))]
    place = next((frame for frame in frames if frame.own), frames[0] if frames else None)
    return None if place is None else place.shown(1)


def parse_py_spy(data: bytes, pid: int) -> Dump | None:
    """Parse the output of `py-spy dump --json` for the process `pid`. Return None if the output is invalid."""
    try:
        threads: list[dict[str, Any]] = json.loads(data)
        main = next((thread for thread in threads if thread.get("os_thread_id") == pid), threads[-1])
        others = tuple(_py_spy_frames(thread) for thread in threads if thread is not main)
        return Dump(_py_spy_frames(main), others)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def understood(dump: Dump, sources: Sources, cwd: str = "") -> RankStack:
    """Describe the state of a rank from its Python stacks. `cwd` is the rank's working directory."""
    others = tuple(_shown(frames) for frames in dump.others)
    if not dump.main:
        return RankStack("running", "running; it has too many threads to show the main thread", others=others)
    innermost = dump.main[0]
    place = next((frame for frame in dump.main if frame.own), innermost)
    source = None if place.line is None else sources.line(os.path.join(cwd, place.file), place.line)  # noqa: PTH118
    name = _collective(dump.main, place, source)
    if name:
        doing = f"in {name}, called at {place.shown(1)}"
    elif source is not None:
        shown = source if len(source) <= MAX_SOURCE else f"{source[: MAX_SOURCE - 3]}..."
        doing = f"at {place.shown(1)}: {shown}"
    else:
        doing = f"at {place.shown(1)}" if place is innermost else f"at {place.shown(1)}, inside {innermost.shown(1)}"
    may_wait = name is None and bool(_MAY_WAIT.search(innermost.file))
    return RankStack("running", doing, place.shown(1), name is not None, _shown(dump.main), others, may_wait)


def _frame(match: re.Match[str]) -> Frame:
    line_number = int(match["line"]) if match["line"].isdecimal() else None
    return Frame(_unescaped(match["file"] or "???"), line_number, _unescaped(match["function"]))


def _py_spy_frames(thread: dict[str, Any]) -> Frames:
    frames = []
    for frame in thread["frames"]:
        line = frame["line"]
        known = type(line) is int and 0 < line < _MAX_LINES
        frames.append(Frame(str(frame["filename"]), line if known else None, str(frame["name"])))
    return tuple(frames)


def _unescaped(text: str) -> str:
    r"""Decode escape sequences such as \xe9 for é. Keep the escapes of unprintable characters."""

    def char_of(match: re.Match[str]) -> str:
        code = int(match[1] or match[2] or match[3], 16)
        return chr(code) if code < 0x110000 and chr(code).isprintable() else match[0]

    return _ESCAPE.sub(char_of, text)


def _collective(frames: Frames, place: Frame, source: str | None) -> str | None:
    """Return the function in which the user's code waits for other ranks, or None if the code is not waiting."""
    below = list(takewhile(lambda frame: not frame.own, frames))
    inside = [frame for frame in below if frame.collective]
    if any(frame.function == "<module>" for frame in below):  # it is importing a library, perhaps for communication
        return None
    if inside:
        named = [frame.function for frame in inside if _COLLECTIVE_NAME.fullmatch(frame.function)]
        plain = [frame.function for frame in inside if frame.function not in _WRAPPERS]
        return (named or plain or [inside[0].function])[-1]
    if place is not frames[0]:
        return None
    # A C library has no frames, so only the calling line or the name of the calling function can show it.
    if source is None:
        return place.function if _COLLECTIVE_NAME.fullmatch(place.function) else None
    call = _COLLECTIVE_CALL.search(source)
    return call[1] if call and not _SLEEP_CALL.search(source) else None


def _shown(frames: Frames) -> tuple[str, ...]:
    """Format the frames of a stack. Omit the outermost frames, which only start the program."""
    below = next((number for number, frame in enumerate(reversed(frames)) if frame.own), 0)
    return tuple(frame.shown(2) for frame in frames[: len(frames) - below])


# --- lines of source files ---


class Sources:
    """A cache of source lines. `network_s` limits the total time for reads from network file systems, in seconds."""

    def __init__(self, network_s: float = 0.0) -> None:
        self._network_s = network_s
        self._known: dict[tuple[str, int], str | None] = {}  # many ranks are at the same line
        self._mounts: dict[str, str] | None = None

    def line(self, path: str, number: int) -> str | None:
        """Return a line of a source file without indentation, or None if it cannot be read in time."""
        if (path, number) not in self._known:
            self._known[path, number] = self._read(path, number) if os.path.isabs(path) else None  # noqa: PTH117
        return self._known[path, number]

    def _read(self, path: str, number: int) -> str | None:
        if self._mounts is None:
            self._mounts = {mount.point: mount.kind for mount in mounts()}
        if is_local(path, self._mounts):
            return _line(path, number)
        if self._network_s <= 0:
            return None
        # Once the time is used up, no more lines are read. The thread may never end.
        found: list[str | None] = []
        began = time.monotonic()
        thread = threading.Thread(target=lambda: found.append(_line(path, number)), daemon=True)
        thread.start()
        thread.join(self._network_s)
        self._network_s -= time.monotonic() - began
        return found[0] if found else None


def is_local(path: str, known: dict[str, str]) -> bool:
    """Return True if an absolute path can be read without access to a network file system.

    `known` maps mount points to types of file systems.
    """
    pending, place, links = path.split("/")[::-1], "/", 0
    while pending:
        name = pending.pop()
        if name in {"", "."}:
            continue
        place = os.path.normpath(os.path.join(place, name))  # noqa: PTH118 - ".." is of a place without links
        point = place
        while point not in known and point != "/":
            point = os.path.dirname(point)  # noqa: PTH120
        # The root is treated as local, because without it this process could not run.
        if point != "/" and known[point] not in _LOCAL:
            return False
        try:
            target = os.readlink(place)  # noqa: PTH115 - it need not be a link
        except (OSError, ValueError):
            continue
        links += 1
        if links > MAX_LINKS:
            return False
        pending += target.split("/")[::-1]
        place = "/" if target.startswith("/") else os.path.dirname(place)  # noqa: PTH120
    return True


def _line(path: str, number: int) -> str | None:
    with suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116
        if stat.S_ISREG(found.st_mode) and found.st_size <= MAX_BYTES:
            with open(path, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
                text = next(islice(lines, number - 1, None), "")
            return "".join(char for char in text.strip() if char.isprintable()) or None
    return None
