"""The attempts of a run on one server. Each attempt has its own ranks, port and verdict."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.control import orders
from launcher.control.events import CONTINUES, KILLS_AT_ONCE, PAUSES
from launcher.core import env
from launcher.core.atomic import write_text
from launcher.core.events import Cause, Trouble
from launcher.core.frozen import frozen
from launcher.core.line_times import NOTE_EVERY_S, RECORD
from launcher.core.machine.proc import waits_at_stdin
from launcher.core.records import RankSpec, RunSpec, full_assignment
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt
from launcher.core.text import ranges
from launcher.logs.log_file import tail
from launcher.preload.masking import masked_text
from launcher.program.program_command import is_python
from launcher.supervise.attempt_monitor import AttemptMonitor, AttemptStage, RankEnder
from launcher.supervise.disk import BUSY_S, Disk
from launcher.supervise.port import HeldPort, hold_port
from launcher.supervise.progress_monitor import ProgressMonitor
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.scheduler import Scheduler, meeting_place
from launcher.supervise.spawner import ServerShare, Spawner
from launcher.supervise.tree import RunGroup

if TYPE_CHECKING:
    from launcher.supervise.link import Link

KEPT_BYTES = 1 << 20  # of records that became invalid because the log was truncated
LAST_BYTES = 16 << 10  # read from the end of a log
_HEADER = b"Traceback (most recent call last):"


@frozen
class LocalAttempt:
    order: orders.BeginAttempt
    ranks: Sequence[RankSpec]  # on this server
    world_size: int
    began_ns: int  # since 1970


class Attempts:
    """Starts and ends the attempts of a run on this server. Each attempt starts all ranks again."""

    present: LocalAttempt
    rank_group: RankGroup
    monitor: AttemptMonitor

    def __init__(self, share: ServerShare, spawner: Spawner, group: RunGroup, disk: Disk, link: Link | None) -> None:
        """Prepare for the first attempt. If the run has other servers, `link` connects to the coordinator."""
        self.share, self.event_log, self.disk = share, spawner.event_log, disk
        self._spawner, self._group, self._link = spawner, group, link
        self._port = share.port
        self._scheduler = Scheduler(self.event_log)  # of the current attempt
        self.paused = False
        self.over: list[Attempt] = []

    @property
    def number(self) -> int:
        return self.present.order.number

    @property
    def master_port(self) -> int:
        return self._port.number

    def carry_out(self, order: orders.Order) -> None:
        """Carry out an order of the run controller. Orders that do not concern ranks are ignored."""
        match order:
            case orders.Record(event=event):
                self.event_log.record(event)
            case orders.BeginAttempt():
                self._begin(order)
            case orders.CollectEvidence():
                self.monitor.collect()
            case orders.EndRanks(cause=cause, verdict=verdict, restarts=restarts):
                self.monitor.end(cause, verdict, restarts=restarts)
            case orders.CancelRestart():
                self.monitor.ender.forget_repeat()
            case orders.ForwardSignal(number=number) if number == KILLS_AT_ONCE:
                self.monitor.ender.hurry()
            case orders.ForwardSignal(number=number) if number in {PAUSES, CONTINUES}:
                if self.paused != (number == PAUSES):
                    self.paused = number == PAUSES
                    self.monitor.pause(pauses=self.paused)
            case orders.ForwardSignal(number=number):
                self.monitor.forward(number)
            case _:
                pass

    def _begin(self, order: orders.BeginAttempt) -> None:
        number, master_port = order.number, order.master_port
        self._scheduler.close()
        self._group.take_back()
        if self._port.holder is None:
            self._port = HeldPort(master_port)
        spec = self._spec_of(order)
        ranks = self.share.ranks
        if spec is not self.share.spec:
            ranks = tuple(rank for rank in spec.ranks if rank.server_index == self.share.server_index)
        run_dir = RunDir(spec.run_dir)  # with the files of ranks
        self.present = LocalAttempt(order, ranks, len(spec.ranks), self.event_log.record(order.event))
        variables = {
            env.TLAUNCH_ATTEMPT: str(number),
            env.TORCHELASTIC_RESTART_COUNT: str(number),
            env.MASTER_PORT: str(master_port),
        }
        self._scheduler = Scheduler(self.event_log)
        inherited = self.share.inherited
        if spec.supervision.scheduler is not None:
            variables |= meeting_place(spec.master_addr, master_port)
            self._scheduler.start(spec, ranks, inherited, variables, number)
        self.rank_group = RankGroup(ranks, run_dir, number, variables, inherited=inherited, spawner=self._spawner)
        supervision = self.share.spec.supervision
        global_ranks = [rank.global_rank for rank in ranks]
        self._arrivals = ArrivalNotes(run_dir, global_ranks)
        self.disk.chores["arrivals"] = self._arrivals.look
        others = self._link is not None
        may_repeat = others and supervision.may_restart
        ender = RankEnder(self.rank_group, supervision, self._group, self._scheduler, may_repeat=may_repeat)
        hang_timeout_s, layout = supervision.hang_timeout_s, spec.layout
        progress = ProgressMonitor(run_dir, global_ranks, hang_timeout_s, layout, self._is_excused)
        self.monitor = AttemptMonitor(self.rank_group, progress, ender, others=others)
        if self.paused:
            self.monitor.pause(pauses=True)

    def _spec_of(self, order: orders.BeginAttempt) -> RunSpec:
        """Return the spec of an attempt. If an elastic run changes its devices, create a new spec and its files."""
        spec, allotment = self.share.spec, order.allotment
        if allotment is None or allotment == full_assignment(spec.layout):
            return spec
        assert self.share.specify is not None, "only an elastic run has other devices"
        changed, files = self.share.specify(allotment, order.number)
        for name, text in files.items():
            path = spec.run_dir / name
            try:
                write_text(path, text)
            except OSError as error:  # ranks that read the file will fail with a message
                self.event_log.record(Trouble(f"cannot write {path}: {error.strerror}"))
        return changed

    def _programs(self, run_dir: RunDir) -> dict[int, Path]:
        """Return the script of each rank that runs `python SCRIPT` and has not written a failure.json."""
        programs: dict[int, Path] = {}
        for rank in self.present.ranks:
            script = next((word for word in rank.argv[1:] if not word.startswith("-")), "")
            has_recorded = os.path.lexists(run_dir.failure(rank.global_rank))
            if is_python(rank.argv[0]) and script.endswith(".py") and not has_recorded:
                programs[rank.global_rank] = self.share.spec.cwd / script
        return programs

    def end(self) -> bool:
        """Close the current attempt after its processes have ended. Return True if any process could not be killed."""
        self.monitor.close()
        del self.disk.chores["arrivals"]
        self.disk.do(partial(self._arrivals.look, at_last=True))
        if self.monitor.cause is Cause.FINISHED:
            run_dir, offsets = RunDir(self.share.spec.run_dir), self.rank_group.log_offsets
            logs = {rank: (run_dir.train_log(rank), offset) for rank, offset in offsets.items()}
            for warning in doubtful_ends(logs, self._programs(run_dir)):
                self.event_log.record(Trouble(warning))
        order = self.present.order
        self.over.append(
            Attempt(
                number=order.number,
                master_port=order.master_port,
                started_ns=self.present.began_ns,
                ended_ns=time.time_ns(),
                cause=self.monitor.cause,
                exits=tuple(self.rank_group.exits),
                verdict=self.monitor.verdict,
                killed=self.monitor.ender.killed,
                allotment=order.allotment,
            )
        )
        left = bool(self.monitor.ender.left())
        if self.monitor.ender.may_repeat and not left and self._port.holder is not None:
            # Connections of this attempt must not reach the next one.
            try:
                former, self._port = self._port, hold_port()
            except OSError as error:
                reason = f"cannot reserve another port, so ranks use the same port again: {error.strerror}"
                self.event_log.record(Trouble(reason))
            else:
                former.close()
        return left

    def _is_excused(self) -> bool:
        """Return True if ranks may wait for a disk that does not respond, or for the user's input."""
        reader = self.rank_group.running.get(-1 if (stdin := self.share.spec.stdin) is None else stdin)
        if reader is not None and waits_at_stdin(reader):
            return True
        return self.disk.silent_s >= BUSY_S or (self._link is not None and self._link.other_disk_stalls)

    @property
    def undisturbed(self) -> bool:
        """True while ranks are running and neither the evidence collection nor the shutdown has started."""
        return self.monitor.stage is AttemptStage.RUNNING

    def held_port(self) -> int | None:
        """Return the port that is reserved for the next attempt, or None if this server has reserved no port."""
        return None if self._port.holder is None else self._port.number

    def end_scheduler(self) -> bool:
        """Kill MindSpore's scheduler, which no rank needs any more. Return True if it was running."""
        return self._scheduler.close()

    def close(self) -> None:
        self._port.close()


class ArrivalNotes:
    """Records the times at which the logs of this server's ranks grow (see launcher/core/line_times.py).

    Create it after `RankGroup`, which prepares the logs. A check costs one `stat` per log, and a write of 16 bytes per
    log that has grown. Write errors are ignored.
    """

    def __init__(self, run_dir: RunDir, global_ranks: Iterable[int]) -> None:
        paths = ((run_dir.train_log(rank), run_dir.arrivals(rank)) for rank in global_ranks)
        self._noted = {(os.fspath(log), os.fspath(arrivals)): _begin(arrivals) for log, arrivals in paths}
        self._due_s = 0.0  # monotonic

    def look(self, *, at_last: bool = False) -> None:
        """Record which logs have grown. Look at most once every `NOTE_EVERY_S` seconds, unless `at_last` is True."""
        now_s = time.monotonic()
        if now_s < self._due_s and not at_last:
            return
        self._due_s = now_s + NOTE_EVERY_S
        for (log, arrivals), noted in self._noted.items():
            with suppress(OSError):
                found = os.stat(log)  # noqa: PTH116 - a str path is three times as fast
                if found.st_size != noted:
                    # The last write was no later than this, and may have been long before a late check.
                    written_ns = min(found.st_mtime_ns, time.time_ns())
                    _note(arrivals, RECORD.pack(written_ns, found.st_size), is_anew=found.st_size < noted)
                    self._noted[log, arrivals] = found.st_size


def _note(arrivals: str, record: bytes, *, is_anew: bool) -> None:
    """Append a record to an `arrivals` file. Empty a long file first if the log was truncated (`is_anew`)."""
    descriptor = os.open(arrivals, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        size_bytes = os.fstat(descriptor).st_size
        kept_bytes = 0 if is_anew and size_bytes > KEPT_BYTES else size_bytes - size_bytes % RECORD.size
        if kept_bytes < size_bytes:  # also removes an incomplete record after a full disk
            os.ftruncate(descriptor, kept_bytes)
        os.write(descriptor, record)
    finally:
        os.close(descriptor)


def _begin(arrivals: Path) -> int:
    """Create an `arrivals` file if it is missing. Return the log size in its last record, or 0 if the file is empty."""
    with suppress(OSError), arrivals.open("ab+") as file:
        whole = file.seek(0, os.SEEK_END) // RECORD.size
        if whole:
            file.seek((whole - 1) * RECORD.size)
            return int(RECORD.unpack(file.read(RECORD.size))[1])
    return 0


def doubtful_ends(logs: Mapping[int, tuple[Path, int]], programs: Mapping[int, Path]) -> Iterator[str]:
    """Yield warnings about ranks that exited with 0 although their logs end with a traceback.

    `python train.py | tee log` and `python train.py || true` exit with 0 even if the program fails. `logs` has each
    rank's log and the offset at which the attempt starts. `programs` has the script of each rank that runs Python
    directly; such a rank cannot exit with 0 after an uncaught exception. Never raises.
    """
    ranks_of: dict[str, list[int]] = {}
    for global_rank, (log, offset) in logs.items():
        if words := _last_words(log, offset, programs.get(global_rank)):
            ranks_of.setdefault(words, []).append(global_rank)
    for words, ranks in ranks_of.items():
        who, whose = ("rank", "its log ends") if len(ranks) == 1 else ("ranks", "their logs end")
        first, _ = logs[ranks[0]]
        yield f"{who} {ranges(ranks)} exited with 0, but {whose} with a traceback: {words}; log in {first}"


def _last_words(log: Path, offset: int, program: Path | None) -> str | None:
    """Describe the exception if a log ends with the traceback of an uncaught exception, else return None."""
    end = b""
    with suppress(OSError):
        end = tail(log, offset, LAST_BYTES)
    if _HEADER not in end:
        return None
    from launcher.logs.tracebacks import frames_in, may_be_uncaught, traceback_in  # noqa: PLC0415 - few logs end so

    found = traceback_in(end)
    if found is None or found.lines_after or not may_be_uncaught(found):
        return None
    frames = frames_in(found.text)
    if program is not None and found.thread is None and frames and Path(frames[0][0]) == program:
        return None
    first_line = found.message.partition("\n")[0]
    what = masked_text(f"{found.type}: {first_line}" if first_line else found.type)
    return f"{what}, at {found.where}" if found.where else what
