"""Samples a run for `tlaunch top`: the state, machine usage and progress of each rank."""

from __future__ import annotations

import sys
import time

from launcher.cli.commands.top.measured import RecentMetrics, to_lines
from launcher.cli.text.columns import has_blocks
from launcher.cli.text.verdict_text import describe_status
from launcher.core.frozen import frozen
from launcher.core.machine.proc import Usage, usage_of
from launcher.core.metrics import StepMetrics
from launcher.core.run_dir import RunDir
from launcher.runs.rank_figures import FiguresReader, RankFigures, pattern_for
from launcher.runs.silence import SilenceReader, Silences
from launcher.runs.status import RankLook, RankState, RunState, RunStatusReader


@frozen
class Row:
    rank: RankLook
    slow: bool
    figures: RankFigures
    usage: Usage | None
    cpu_share: float | None  # of one core; None until the process was seen twice
    written_ns: int | None  # last write to its log, since 1970; None without a process
    silent_s: float | None  # None unless it is silent for unusually long

    @property
    def state(self) -> str:
        """The state, or how the rank ended."""
        if self.rank.status is not None:
            return describe_status(self.rank.status)
        striking = "silent" if self.silent_s is not None else "slow" if self.slow else ""
        return ", ".join(filter(None, (self.rank.state.value, striking)))


class Sampler:
    """Samples a run repeatedly. CPU shares are known from the second sample on. Attributes describe the last one."""

    def __init__(self, run_dir: RunDir, progress_regex: str | None = None) -> None:
        """`progress_regex` parses the ranks' output, in place of the one that the run was started with."""
        self._watch = RunStatusReader(run_dir)
        self._metrics = RecentMetrics(run_dir)
        self._figures = FiguresReader(run_dir, pattern_for(run_dir, progress_regex))
        self._silence = SilenceReader(run_dir)
        self._plain = not has_blocks(sys.stdout.encoding)  # decided now, because rich replaces stdout
        self.steps: list[StepMetrics] = []  # of the last minutes
        self.silences = Silences()
        self._before: dict[int, Usage] = {}
        self._before_s = 0.0

    def measured(self, width: int) -> list[str]:
        """Return the recent metrics of the last sample, in lines of at most `width` columns."""
        return list(to_lines(self.steps, width, plain=self._plain))

    def look(self) -> tuple[RunState, list[Row]]:
        """Sample the run; return its state, and one row per rank in ascending order."""
        state = self._watch.look()
        ranks = list(state.ranks)
        alive = {RankState.RUNNING, RankState.STOPPED}
        pids = {look.process.pid for look in ranks if look.process and look.process.is_local and look.state in alive}
        usages, now_s = usage_of(pids), time.monotonic()
        starts = state.progress.current.starts
        offsets = {rank: start.event.log_offset for rank, start in starts.items()}
        figures = {
            look.global_rank: self._figures.look(look.global_rank, offsets.get(look.global_rank, 0)) for look in ranks
        }
        beats_ns = {rank: None if each.heartbeat is None else each.heartbeat.time_ns for rank, each in figures.items()}
        running = [look.global_rank for look in ranks if look.state is RankState.RUNNING]
        self.silences = self._silence.look(
            {look.global_rank: beats_ns[look.global_rank] for look in ranks if look.state in alive},
            {rank: start.time_ns for rank, start in starts.items()},
        )
        slow = state.progress.current.slow.keys() & set(running)
        rows = []
        for look in ranks:
            rank, pid = look.global_rank, look.process.pid if look.process else 0
            share = None
            if pid in usages and pid in self._before and now_s > self._before_s:
                share = max(0.0, usages[pid].cpu_s - self._before[pid].cpu_s) / (now_s - self._before_s)
            written_ns = self.silences.written_ns.get(rank)
            silent_s = self.silences.silent_s.get(rank) if rank in running else None
            rows.append(Row(look, rank in slow, figures[rank], usages.get(pid), share, written_ns, silent_s))
        self._before, self._before_s = usages, now_s
        self.steps = self._metrics.look()
        return state, rows
