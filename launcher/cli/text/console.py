"""What a person sees while a run goes on: lines of a few ranks on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import math
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import awaited, counted, server_list
from launcher.cli.text.console_feed import feed_of, format_of, ranks_of, shown_ranks
from launcher.cli.text.partial_lines import Unfinished
from launcher.cli.text.progress_text import Pace
from launcher.cli.text.status_line import StatusLine
from launcher.cli.text.stdout import Outlet, as_people_call_it
from launcher.cli.text.summary import describe
from launcher.core.events import (
    AttemptStarted,
    Awaiting,
    Cause,
    Event,
    Hung,
    Leftovers,
    RankEnded,
    Slow,
    Stamped,
    Stopping,
    Trouble,
)
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import one_line, shortened
from launcher.runs.progress import Progress

AT_ONCE_S = 0.1  # how long one tick may show lines or wait for stdout; events wait meanwhile
LAST_BYTES = 4 << 20  # at most so much is shown once nothing runs any more
# A run that was stopped, or failed, waits no longer for whoever reads stdout.
END_PATIENCE_S = 2.0
ENDING_SHOWN_AFTER_S = 1.0  # most processes end at once, and then nothing needs to be said


class Console:
    """Observes one run. A stdout or stderr that nobody reads any more is forgotten; the run goes on."""

    def __init__(self, spec: RunSpec, server_index: int | None = None) -> None:
        """`server_index`: of the server whose ranks alone are observed; None: all are."""
        shown = shown_ranks(spec, server_index)
        self.progress = Progress(len(ranks_of(spec, server_index)))
        self.shown_dir = as_people_call_it(spec.run_dir)
        self._spec = spec
        shape = format_of(spec, shown, sys.stdout)
        self._feed = feed_of(spec, shown, shape)
        self._stdout = Outlet(sys.stdout)
        self._status = StatusLine(sys.stderr)
        self._unfinished = Unfinished(shape, sys.stdout, before=self._status.erase)
        self._pace = Pace(RunDir(spec.run_dir), on_terminal=sys.stderr.isatty()) if spec.console == "status" else None
        self._interrupted = False
        self._at_once = False  # every rank is killed, without grace
        self._asked_elsewhere = ""  # who wants the end, until that is told
        self._stopping_since_s = math.inf
        self._last_end_s = -math.inf

    # --- launcher.engines.attend.Observer ---

    def event(self, stamped: Stamped) -> None:
        self.progress.take(stamped)
        match stamped.event:
            case RankEnded(global_rank=global_rank):
                self._last_end_s = time.monotonic()
                self._feed.rank_ended(global_rank)
            case Stopping(cause=Cause.AGENT_LOST):
                self.say("the supervising process is gone; ending everything that it left behind")
            case Stopping():
                self._stopping_since_s = time.monotonic()
                if stamped.event.restarts:
                    self._say_restarting()
                if stamped.event.server is not None:
                    self._asked_elsewhere = one_line(stamped.event.asked_by or "")
                if stamped.event.signal == signal.SIGQUIT:
                    self._say_killing()
            case Leftovers(count=count):
                self.say(
                    f"every rank ended well; ending {counted(count, 'process', 'processes')} that they left, {self._killed_when()}"
                )
            case Trouble(message=message):
                self.say(shortened(f"warning: {message}"))
            case _:
                self._say_what_happened(stamped.event)

    def _say_what_happened(self, event: Event) -> None:
        match event:
            case Slow():
                self.say(
                    f"warning: rank {event.global_rank} is slow: {event.busy_s:.3g} s of work in each of the last "
                    f"{event.steps} steps, the median rank {event.median_s:.3g} s"
                )
            case Hung():
                who = verdict_text.rank_list(event.global_ranks)
                self.say(f"{who}: no progress for {event.seconds:.0f} s; looking where the ranks are")
            case Awaiting() if event.server_ids:
                self.say(awaited(server_list(event.server_ids), event.limit_s))
            case AttemptStarted() if event.number:
                total = self._spec.supervision.max_restarts
                self.say(f"restart {event.number} of {total}")
                self._status.hurry()
                if self._pace is not None:
                    self._pace.forget()
            case _:
                pass

    def _say_restarting(self) -> None:
        if self.progress.verdict is not None:
            for line in verdict_text.render(self.progress.verdict, traceback=False):
                self.say(line)

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._interrupted = True
        if at_once:
            self._say_killing()
        elif not self._at_once:
            again = "; Ctrl-C again kills them at once" if number == signal.SIGINT else ""
            self._say_ending(signal.Signals(number).name, again)

    def _say_asked_elsewhere(self) -> None:
        """Not where the signal came to this launcher, which has told it; that it did is heard before the next tick."""
        if self._asked_elsewhere and not self._interrupted and not self._at_once:
            self._say_ending(self._asked_elsewhere)
        self._asked_elsewhere = ""

    def _say_ending(self, who: str, again: str = "") -> None:
        self.say(f"{who}: ending all ranks within {self._spec.supervision.grace_s:g} s{again}")

    def _say_killing(self) -> None:
        """Once: the signal, and what the agent makes of it, come by two ways."""
        if not self._at_once:
            self._at_once = True
            self.say("killing all ranks")

    def tick(self) -> bool:
        self._say_asked_elsewhere()
        more = self._show(time.monotonic() + AT_ONCE_S)
        if not self._stdout.pending and self._spec.console != "none":  # else a line may be half shown
            self._show_foot()
        return more

    # --- the rest ---

    def finish(self, closing_lines: Callable[[], Iterable[str]]) -> None:
        """When nothing runs any more: the end of the logs (Ctrl-C skips it), then the closing words."""
        with suppress(KeyboardInterrupt):
            self._show_rest()
        self._feed.close()
        for line in closing_lines():
            self.say(line)

    def say(self, line: str) -> None:
        owed = self._erase_foot()
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            print(f"{owed if sys.stderr.isatty() else ''}{line}", file=sys.stderr, flush=True)

    def _show_foot(self) -> None:
        """The row at the foot of a terminal: what ranks have begun to write, or how the run stands."""
        ending = self.progress.stopping is not None
        begun = self._feed.begun() if self._unfinished.wanted and not ending else {}
        going_on = {rank: line for rank, line in begun.items() if rank not in self.progress.exits}
        if self._unfinished.show(going_on) and self._status.on_terminal:
            return
        text = self._status_text()
        self._status.show(text, self._why_ending() if text and ending else "")

    def _erase_foot(self) -> str:
        """As `StatusLine.erase`."""
        owed = self._unfinished.erase(), self._status.erase()
        return max(owed)

    def _status_text(self) -> str:
        """Empty while there is nothing worth a line: nothing started yet, nothing left, nothing to wait for."""
        started, running, total = len(self.progress.started_ns), self.progress.running, self.progress.rank_count
        if self._at_once:
            return ""
        if self.progress.stopping is not None and not running:
            return self._status_of_others()
        if not running or (started < total and self.progress.stopping is None):
            return ""
        if self.progress.stopping is not None:
            end = "being killed" if self.progress.killed else "killed if they take too long"
            return f"{counted(running, 'rank')} of {total} to end, {end}"
        if running == total:
            return self._all_started()
        lasts = time.monotonic() - self._last_end_s > ENDING_SHOWN_AFTER_S  # ranks that end together do so one by one
        return f"{running} of {total} ranks running" if lasts else ""

    def _all_started(self) -> str:
        if self._pace is not None and (pace := self._pace.text()):
            return f"{counted(self.progress.rank_count, 'rank')}: {pace}"
        started = f"{counted(self.progress.rank_count, 'rank')} started"
        if self.progress.attempt:  # the directory is the run's, and has been told
            return f"attempt {self.progress.attempt}: {started}"
        return f"{started} in {self.shown_dir}"

    def _why_ending(self) -> str:
        if self.progress.verdict is not None:
            return f"{verdict_text.headline(self.progress.verdict)}; "
        failed = self.progress.first_failure
        return "" if failed is None else f"rank {failed.global_rank} failed ({describe(failed)}); "

    def _status_of_others(self) -> str:
        """No rank is left, but perhaps what ranks had started."""
        begun = self.progress.started_ns and self.progress.not_begun is None
        if self.progress.ended or not begun or time.monotonic() < self._stopping_since_s + ENDING_SHOWN_AFTER_S:
            return ""
        return f"ending processes that ranks left, {self._killed_when()}"

    def _killed_when(self) -> str:
        return f"killed if they take more than {self._spec.supervision.grace_s:g} s"

    def _show_rest(self) -> None:
        if self._stdout.forgotten:
            return
        in_haste = self._interrupted or self.progress.stopping is not None
        for global_rank, skipped in self._feed.skip_to_last(LAST_BYTES):
            self.say(f"... {skipped} bytes not shown, see {RunDir(self.shown_dir).train_log(global_rank)}")
        patience_s = END_PATIENCE_S if in_haste else math.inf
        late = self._show(time.monotonic() + patience_s, ended=True)
        if late and not self._stdout.pending:  # it took all that came: we have been held up ourselves
            late = self._show(time.monotonic() + patience_s, ended=True)
        if late:
            self._forget_stdout(TimeoutError(errno.ETIMEDOUT, f"to show the rest took more than {END_PATIENCE_S:g} s"))

    def _show(self, until_s: float, *, ended: bool = False) -> bool:
        """Show new lines as fast as stdout takes them; whether some may be left. Where nobody reads them, nor do we."""
        try:
            while not self._stdout.forgotten:
                if not self._stdout.push(until_s) or time.monotonic() >= until_s:
                    return True
                if (text := self._feed.next_text(ended=ended)) is None:
                    return False
                if text:
                    owed = self._erase_foot()
                    self._stdout.put_bytes(owed.encode() + text if sys.stdout.isatty() else text)
        except OSError as error:
            self._forget_stdout(error)
        return False

    def _forget_stdout(self, error: OSError) -> None:
        """A reader that has left (`| head`) knows why; anything else is worth a word."""
        self._stdout.forget()
        if not isinstance(error, BrokenPipeError):
            self.say(f"warning: nothing more is shown on stdout: {error.strerror}; see the logs in {self.shown_dir}")
