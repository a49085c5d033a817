"""What a person sees while a run goes on: lines of a few ranks on stdout, everything else on stderr."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from launcher.cli.text import verdict_text
from launcher.cli.text.columns import awaited, counted, server_list
from launcher.cli.text.foot import Foot
from launcher.cli.text.log_stream import feed_of, format_of, ranks_of, shown_ranks, truncated
from launcher.cli.text.rank_lines import RankLines
from launcher.cli.text.stdout import as_people_call_it
from launcher.core.events import (
    AttemptStarted,
    Awaiting,
    Cause,
    Event,
    Hung,
    Leftovers,
    RankEnded,
    Slow,
    Stopping,
    TimestampedEvent,
    Trouble,
)
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.terminal import one_line, shortened
from launcher.runs.progress import Progress

AT_ONCE_S = 0.1  # how long one tick may show lines or wait for stdout; events wait meanwhile
LAST_BYTES = 4 << 20  # at most so much is shown once nothing runs any more


class Console:
    """Observes one run. A stdout or stderr that nobody reads any more is forgotten; the run goes on."""

    def __init__(self, spec: RunSpec, server_index: int | None = None) -> None:
        """`server_index`: of the server whose ranks alone are observed; None: all are."""
        shown = shown_ranks(spec, server_index)
        self.progress = Progress(len(ranks_of(spec, server_index)))
        self.shown_dir = as_people_call_it(spec.run_dir)
        self._spec = spec
        shape = format_of(spec, shown, sys.stdout)
        shown_logs = RunDir(self.shown_dir)
        self._feed = feed_of(
            spec, shown, shape, lambda rank, what: self.say(truncated(shown_logs.train_log(rank), what))
        )
        self._foot = Foot(spec, self.progress, shape, self.shown_dir)
        self._lines = RankLines(self._feed, self._foot.erase, self._say_nothing_more)
        self._interrupted = False
        self._at_once = False  # every rank is killed, without grace
        self._asked_elsewhere = ""  # who wants the end, until that is reported

    # --- launcher.cluster.launcher_loop.Observer ---

    def event(self, stamped: TimestampedEvent) -> None:
        self.progress.take(stamped)
        self._foot.event(stamped.event)
        grace_s = self._spec.supervision.grace_s
        match stamped.event:
            case RankEnded(global_rank=global_rank):
                self._feed.rank_ended(global_rank)
            case Stopping():
                self._say_stopping(stamped.event)
            case Leftovers(count=count):
                left = counted(count, "process", "processes")
                self.say(
                    f"every rank ended well; ending {left} that they left, killed if they take more than {grace_s:g} s"
                )
            case Trouble(message=message):
                self.say(shortened(f"warning: {message}"))
            case _:
                self._say_what_happened(stamped.event)

    def _say_stopping(self, event: Stopping) -> None:
        if event.cause is Cause.AGENT_LOST:
            self.say("the supervising process is gone; ending everything that it left behind")
            return
        if event.restarts and self.progress.current.verdict is not None:
            for line in verdict_text.render(self.progress.current.verdict, traceback=False):
                self.say(line)
        if event.server is not None:
            self._asked_elsewhere = one_line(event.asked_by or "")
        if event.signal == signal.SIGQUIT:
            self._say_killing()

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
                self.say(f"restart {event.number} of {self._spec.supervision.max_restarts}")
            case _:
                pass

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._interrupted = True
        if at_once:
            self._say_killing()
        elif not self._at_once:
            again = "; Ctrl-C again kills them at once" if number == signal.SIGINT else ""
            self._say_ending(signal.Signals(number).name, again)

    def tick(self) -> bool:
        # Not where the signal came to this launcher, which has reported it; that it did is heard before the next tick.
        if self._asked_elsewhere and not self._interrupted and not self._at_once:
            self._say_ending(self._asked_elsewhere)
        self._asked_elsewhere = ""
        more = self._lines.show(time.monotonic() + AT_ONCE_S)
        if not self._lines.is_within_line and self._spec.console != "none":
            self._foot.show(self._feed.begun() if self._foot.wants_lines else {}, killed=self._at_once)
        return more

    # --- the rest ---

    def finish(self, closing_lines: Callable[[], Iterable[str]]) -> None:
        """Show the end of the logs when nothing runs any more (Ctrl-C skips it), then the closing lines."""
        with suppress(KeyboardInterrupt):
            self._show_rest()
        self._feed.close()
        for line in closing_lines():
            self.say(line)

    def say(self, line: str) -> None:
        owed = self._foot.erase()
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            print(f"{owed if sys.stderr.isatty() else ''}{line}", file=sys.stderr, flush=True)

    def _say_ending(self, who: str, again: str = "") -> None:
        self.say(f"{who}: ending all ranks within {self._spec.supervision.grace_s:g} s{again}")

    def _say_killing(self) -> None:
        """Once: the signal, and what the agent makes of it, come by two ways."""
        if not self._at_once:
            self._at_once = True
            self.say("killing all ranks")

    def _say_nothing_more(self, why: str) -> None:
        self.say(f"warning: nothing more is shown on stdout: {why}; see the logs in {self.shown_dir}")

    def _show_rest(self) -> None:
        if self._lines.forgotten:
            return
        for global_rank, skipped in self._feed.skip_to_last(LAST_BYTES):
            self.say(f"... {skipped} bytes not shown, see {RunDir(self.shown_dir).train_log(global_rank)}")
        self._lines.show_rest(in_haste=self._interrupted or self.progress.current.ending.stopping is not None)
