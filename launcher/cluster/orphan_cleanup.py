"""The cleanup after an agent was killed: the launcher ends everything that the agent left.

The kernel has killed the ranks by then, without any grace (`die_with_parent`); what they had started gets the grace.
"""

from __future__ import annotations

import selectors
import signal
from collections.abc import Callable
from contextlib import suppress

from launcher.cluster.asker_endpoint import remove_endpoint
from launcher.cluster.shared_fs import remove_marks
from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import AgentEnded, Cause, Event, Killing, Stopping, TimestampedEvent, from_line
from launcher.core.records import RunSpec
from launcher.core.report import Attempt
from launcher.core.run_dir import RunDir
from launcher.runs.progress import Progress
from launcher.supervise.event_log import EventLog, RunRecorder
from launcher.supervise.event_loop import SignalPipe
from launcher.supervise.tree import Ending, RunGroup, something_left


class OrphanCleanup:
    """Ends every descendant of this process, which adopted them as a subreaper, and writes the missing report.

    Bystanders, which were there before the agent, live on.
    """

    def __init__(
        self,
        spec: RunSpec,
        group: RunGroup,
        agent_exit_code: int,
        tell: Callable[[TimestampedEvent], None],
        server_index: int | None = None,
    ) -> None:
        """`server_index`: of the server whose agent it was, where there are several."""
        self._server_index = server_index or 0
        self._coordinates = server_index is None
        self._spec = spec
        self._exit_code = agent_exit_code or EXIT_FAILURE
        self._tell = tell
        self._run_dir = RunDir(spec.run_dir, server_index)
        self._event_log = EventLog(self._run_dir.events, self._server_index)
        self._group = group  # of all that the agent had started
        self._ending: Ending | None = None

    def run(self) -> AgentEnded:
        """Blocks until nothing is left, or what is left cannot be killed. Call after the agent has been reaped."""
        started_ns = self._record(Stopping(Cause.AGENT_LOST, self._spec.supervision.grace_s))
        signal_pipe = SignalPipe([signal.SIGCHLD])
        try:
            self._ending = Ending(
                self._spec.supervision.grace_s,
                tuple,
                on_kill=lambda count: self._record(Killing(count)),
                kill_group=self._group.kill,
            )
            with selectors.DefaultSelector() as selector:
                selector.register(signal_pipe, selectors.EVENT_READ)
                while something_left() and not self._ending.in_vain:
                    selector.select(self._ending.timeout_s)
                    signal_pipe.take()
                    self._ending.step()
        finally:
            signal_pipe.close()
        return self._finish(started_ns)

    def kill_now(self) -> None:
        """Let no grace period pass. Safe in a signal handler, at any time."""
        if self._ending:
            self._ending.hurry()

    def _finish(self, started_ns: int) -> AgentEnded:
        recorder = RunRecorder(self._spec.name, self._server_index, self._run_dir, self._event_log, started_ns)
        recorder.write_report(Cause.AGENT_LOST, self._exit_code, self._attempts())
        if self._coordinates:
            remove_marks(self._run_dir)
            remove_endpoint(self._run_dir)
        ended = AgentEnded(Cause.AGENT_LOST, self._exit_code)
        self._record(ended)
        self._event_log.close()
        return ended

    def _attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts, as far as the agent had reported them."""
        progress = Progress(len(self._spec.ranks))
        with suppress(OSError), self._run_dir.events.open("rb") as lines:
            for line in lines:
                with suppress(ValueError):  # the last line that the agent wrote may be torn
                    if stamped := from_line(line):
                        progress.take(stamped)
        return progress.attempts

    def _record(self, event: Event) -> int:
        time_ns = self._event_log.record(event)
        self._tell(TimestampedEvent(time_ns, self._server_index, event))
        return time_ns
