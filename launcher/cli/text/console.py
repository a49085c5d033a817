"""The console output of an active run: ranks' log lines go to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import awaited, counted, server_list, time_limit
from launcher.cli.text.log_stream import Feed, feed_of, format_of, truncated
from launcher.cli.text.membership_text import membership_lines
from launcher.cli.text.run_status_line import RunStatusLine
from launcher.cli.text.stdout import StreamWriter, as_people_call_it
from launcher.cli.text.style import screen_of
from launcher.core.errors import EXIT_OK
from launcher.core.events import (
    AttemptStarted,
    Awaiting,
    Cause,
    DevicesChanged,
    Hung,
    Joined,
    Leftovers,
    NotExiting,
    RankEnded,
    RankStarted,
    Slow,
    Stopping,
    TimestampedEvent,
    Trouble,
)
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.log_file import Truncation
from launcher.logs.select import ranks_of
from launcher.logs.terminal import one_line, shortened
from launcher.runs.progress import Progress

AT_ONCE_S = 0.1  # the longest time one tick shows lines or waits for stdout; events wait meanwhile
LAST_BYTES = 4 << 20  # the most log bytes shown after the run has ended
END_PATIENCE_S = 2.0  # the longest wait for stdout's reader after a run was stopped or failed


class Console:
    """An observer that prints a run's output. The run continues if the reader of stdout or stderr exits."""

    def __init__(self, spec: RunSpec, server_index: int | None = None, *, quiet: bool = False) -> None:
        """Create the console for a run or for one server's ranks. `quiet` shows only errors and the verdict."""
        self._quiet = quiet
        ranks = tuple(rank.global_rank for rank in spec.ranks if server_index in {None, rank.server_index})
        elastic = spec.supervision.elastic
        devices = None
        if elastic is not None and server_index is not None:
            devices = frozenset(device for device, server in enumerate(elastic.servers) if server == server_index)
        self._own_devices, self._server_index = devices, server_index
        shown = self._shown_of(spec, ranks)
        self.progress = Progress(len(ranks), devices)
        self.shown_dir = as_people_call_it(spec.run_dir)
        self._spec = spec
        self._shape = shape = format_of(spec, shown, sys.stdout)
        # In an elastic run, the ranks of one server are known only when an attempt starts.
        self._feed = feed_of(spec, shown if devices is None else (), shape, self._say_truncated)
        self._former: list[Feed] = []  # feeds of ended attempts whose last lines are not shown yet
        self._foot = RunStatusLine(spec, self.progress, shape, self.shown_dir)
        self._stdout = StreamWriter(sys.stdout)
        self._interrupted = False
        self._at_once = False  # all ranks are killed without a grace period
        self._asked_elsewhere = ""  # the unreported source of a stop request
        self._not_exiting: list[NotExiting] = []  # unreported

    # --- launcher.cluster.launcher_loop.Observer ---

    def event(self, stamped: TimestampedEvent) -> None:
        self.progress.take(stamped)
        self._foot.event(stamped.event)
        match stamped.event:
            case RankEnded(global_rank=rank):
                self._feed.rank_ended(rank)
            case RankStarted() if self._shows_foot:
                self._report_all(self._foot.start_report())  # ranks may end before the next tick
            case Stopping() as stopping:
                self._say_stopping(stopping)
            case Leftovers(count=count):
                self._report(
                    f"all ranks succeeded; terminating {counted(count, 'process', 'processes')} that they left running "
                    f"(SIGKILL after {self._spec.supervision.grace_s:g} s)"
                )
            case Trouble(message=message):
                self._report(shortened(f"warning: {message}"))
            case Slow() | Hung() | NotExiting() as observed:
                self._about_ranks(observed)
            case Awaiting(server_ids=server_ids, limit_s=limit_s) if server_ids:
                self._report(awaited(server_list(server_ids), limit_s))
            case AttemptStarted() | DevicesChanged() | Joined() as event:
                self._report_all(membership_lines(event, self._spec))
                self._show_own_ranks(event)

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._interrupted = True
        if at_once:
            self._say_killing()
        elif not self._at_once:
            again = "; press Ctrl-C again to kill them at once" if number == signal.SIGINT else ""
            self._say_ending(signal.Signals(number).name, again)

    def tick(self) -> bool:
        # Not if this launcher got the signal itself and has reported it, which happens before the next tick.
        if self._asked_elsewhere and not self._interrupted and not self._at_once:
            self._say_ending(self._asked_elsewhere)
        self._asked_elsewhere = ""
        self._report_all(verdict_text.about_not_exiting(self._not_exiting))
        self._not_exiting.clear()
        more = self._show_lines(time.monotonic() + AT_ONCE_S)
        if self._shows_foot:
            self._foot.show(self._feed.partial() if self._foot.wants_lines else {}, killed=self._at_once)
            self._report_all(self._foot.hint())
        return more

    # --- implementation ---

    @property
    def _shows_foot(self) -> bool:
        """True if the status line can be shown. It would overwrite a partial line on stdout, such as a prompt."""
        return not self._stdout.pending and self._spec.console != "none" and self._spec.stdin is None

    @staticmethod
    def _shown_of(spec: RunSpec, ranks: tuple[int, ...]) -> tuple[int, ...]:
        """Return the ranks whose lines are shown. With `--console rank0`, each server shows its lowest rank."""
        named = {"rank0": ranks[:1], "all": ranks, "collapse": ranks, "status": (), "none": ()}
        if spec.console in named:
            return named[spec.console]
        chosen = ranks_of(spec.console, range(len(spec.ranks)))
        return tuple(rank for rank in ranks if rank in chosen)

    def _show_own_ranks(self, event: AttemptStarted | DevicesChanged | Joined) -> None:
        """In a new attempt of an elastic run, show the ranks that now run on this server."""
        if not isinstance(event, AttemptStarted) or event.allotment is None or self._own_devices is None:
            return
        ranks = tuple(rank for rank, device in enumerate(event.allotment.devices) if device in self._own_devices)
        self._former.append(self._feed)
        run_dir = RunDir(self._spec.run_dir, self._server_index)
        shown = self._shown_of(self._spec, ranks)
        self._feed = feed_of(self._spec, shown, self._shape, self._say_truncated, (run_dir, event.number))

    def _say_truncated(self, global_rank: int, what: Truncation) -> None:
        self.say(truncated(RunDir(self.shown_dir).train_log(global_rank), what))

    def _next_text(self, *, ended: bool) -> bytes | None:
        """Return the next text to show, or None. Unread text of earlier attempts is returned first."""
        while self._former:
            if (text := self._former[0].next_text(ended=True)) is not None:
                return text
            self._former.pop(0).close()
        return self._feed.next_text(ended=ended)

    def finish(self, closing_lines: Callable[[], Iterable[str]]) -> None:
        """After the run has ended, show the rest of the logs and then the closing lines. Ctrl-C skips the logs."""
        with suppress(KeyboardInterrupt):
            self._show_rest()
        closing = closing_lines()
        for feed in (*self._former, self._feed):
            feed.close()
        ended_well = self.progress.ended and self.progress.exit_code == EXIT_OK
        for line in closing if not (self._quiet and ended_well) else ():
            self.say(line)

    def _report(self, news: str) -> None:
        if not self._quiet:
            self.say(news)

    def _report_all(self, news: Iterable[str]) -> None:
        for line in news:
            self._report(line)

    def _about_ranks(self, observed: Slow | Hung | NotExiting) -> None:
        match observed:
            case Slow(global_rank=rank, busy_s=busy_s, median_s=median_s, steps=steps):
                work = f"{busy_s:.3g} s of work per step over the last {steps} steps"
                self._report(f"warning: rank {rank} is slow: {work} (median of all ranks: {median_s:.3g} s)")
            case Hung(global_ranks=ranks, seconds=seconds):
                ranks_shown = verdict_text.rank_list(ranks)
                self._report(f"{ranks_shown}: no progress for {seconds:.0f} s; collecting stacks")
            case NotExiting():
                self._not_exiting.append(observed)  # the next tick reports ranks that failed in the same way together

    def say(self, line: str) -> None:
        owed = self._foot.erase()
        if self._spec.stdin is not None and sys.stdout.isatty():
            owed += self._shape.end().decode()  # below the prompt
        with suppress(OSError, ValueError):  # stderr's reader has closed
            message = screen_of(sys.stderr).message(line)
            print(f"{owed if sys.stderr.isatty() else ''}{message}", file=sys.stderr, flush=True)

    def _say_stopping(self, event: Stopping) -> None:
        if event.cause is Cause.AGENT_LOST:
            self.say("the agent process is gone; terminating the processes that it left running")
            return
        verdict = self.progress.current.verdict
        if event.restarts and verdict is not None:
            for line in verdict_text.render(verdict, traceback=False, screen=screen_of(sys.stderr)):
                self.say(line)
        if event.server is not None:
            self._asked_elsewhere = one_line(event.asked_by or "")
        if event.cause is Cause.TIMED_OUT:
            self._say_ending(f"{time_limit(self._spec.supervision.time_limit_s)} reached")
        if event.signal == signal.SIGQUIT:
            self._say_killing()

    def _say_ending(self, who: str, again: str = "") -> None:
        self.say(f"{who}: stopping all ranks within {self._spec.supervision.grace_s:g} s{again}")

    def _say_killing(self) -> None:
        """Report, only once, that all ranks are being killed."""
        if not self._at_once:
            self._at_once = True
            self.say("killing all ranks")

    def _show_lines(self, until_s: float, *, ended: bool = False) -> bool:
        """Show new lines until `until_s`, or until all are shown. Return True if there may be more lines."""
        try:
            while not self._stdout.forgotten:
                if not self._stdout.push(until_s) or time.monotonic() >= until_s:
                    return True
                if (text := self._next_text(ended=ended)) is None:
                    return False
                if text := self._foot.without_steps(text):
                    owed = self._foot.erase()
                    self._stdout.put_bytes(owed.encode() + text if sys.stdout.isatty() else text)
        except OSError as error:
            self._forget_stdout(error)
        return False

    def _show_rest(self) -> None:
        """Show the remaining lines. If the run was stopped or failed, stop after END_PATIENCE_S seconds."""
        if self._stdout.forgotten:
            return
        for global_rank, skipped in self._feed.skip_to_last(LAST_BYTES):
            self.say(f"... {skipped} bytes not shown; see {RunDir(self.shown_dir).train_log(global_rank)}")
        in_haste = self._interrupted or self.progress.current.ending.stopping is not None
        patience_s = END_PATIENCE_S if in_haste else math.inf
        late = self._show_lines(time.monotonic() + patience_s, ended=True)
        if late and not self._stdout.pending:  # the reader was fast enough, but this process was delayed: try again
            late = self._show_lines(time.monotonic() + patience_s, ended=True)
        if late:
            self._forget_stdout(TimeoutError(errno.ETIMEDOUT, f"its reader took more than {END_PATIENCE_S:g} s"))

    def _forget_stdout(self, error: OSError) -> None:
        """Stop writing to stdout, and print a warning unless the reader of stdout has exited."""
        self._stdout.forget()
        if not isinstance(error, BrokenPipeError):
            self.say(f"warning: stopped writing to stdout: {error.strerror}; see the logs in {self.shown_dir}")
