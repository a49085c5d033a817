"""The launcher process during a run: it forwards signals and events, and ends the processes of a killed agent."""

from __future__ import annotations

import os
import selectors
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Protocol

from launcher.cluster.coordinator_files import remove_endpoint, remove_marks
from launcher.core.errors import EXIT_FAILURE
from launcher.core.events import AgentEnded, Cause, Event, Killing, Stopping, TimestampedEvent, Trouble
from launcher.core.machine.proc import in_background
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.engines.local import LocalAgent
from launcher.runs.event_reader import EventReader
from launcher.runs.progress import Progress
from launcher.supervise.disk import start_thread
from launcher.supervise.event_log import EventLog, RunRecorder
from launcher.supervise.event_loop import SignalPipe
from launcher.supervise.tree import Ending, RunGroup, something_left


class OrphanCleanup:
    """Cleans up after an agent that died without a report: ends its processes and writes the report.

    As a subreaper, this process has adopted the agent's descendants. Processes older than the agent are left alone.
    """

    def __init__(
        self,
        spec: RunSpec,
        group: RunGroup,
        agent_exit_code: int,
        report: Callable[[TimestampedEvent], None],
        server_index: int | None = None,
    ) -> None:
        """Prepare the cleanup. `server_index` is the agent's server. It is None if the run has a single server."""
        self._server_index = server_index or 0
        self._coordinates = server_index is None
        self._spec = spec
        self._exit_code = agent_exit_code or EXIT_FAILURE
        self._report = report
        self._run_dir = RunDir(spec.run_dir, server_index)
        self._event_log = EventLog(self._run_dir.events, self._server_index)
        self._group = group  # of all processes that the agent started
        self._ending: Ending | None = None

    def run(self) -> AgentEnded:
        """End all processes that can be killed, and return the last event. Call this after reaping the agent."""
        grace_s = self._spec.supervision.grace_from(time.time())
        started_ns = self._record(Stopping(Cause.AGENT_LOST, grace_s))
        signal_pipe = SignalPipe([signal.SIGCHLD])
        try:
            self._ending = Ending(
                grace_s,
                tuple,
                on_kill=lambda count: self._record(Killing(count)),
                kill_group=self._group.kill,
            )
            with selectors.DefaultSelector() as selector:
                selector.register(signal_pipe, selectors.EVENT_READ)
                while something_left() and not self._ending.is_unkillable:
                    selector.select(self._ending.timeout_s)
                    signal_pipe.take()
                    self._ending.step()
        finally:
            signal_pipe.close()
        recorder = RunRecorder(self._spec.name, self._server_index, self._run_dir, self._event_log, started_ns)
        progress = Progress(len(self._spec.ranks))  # up to the agent's last report
        for stamped in EventReader(self._run_dir.events).read():
            progress.take(stamped)
        recorder.write_report(Cause.AGENT_LOST, self._exit_code, progress.attempts)
        if self._coordinates:
            remove_marks(self._run_dir)
            remove_endpoint(self._run_dir)
        ended = AgentEnded(Cause.AGENT_LOST, self._exit_code)
        self._record(ended)
        self._event_log.close()
        return ended

    def kill_now(self) -> None:
        """Skip the grace period. Safe to call from a signal handler at any time."""
        if self._ending:
            self._ending.hurry()

    def _record(self, event: Event) -> int:
        time_ns = self._event_log.record(event)
        self._report(TimestampedEvent(time_ns, self._server_index, event))
        return time_ns


TICK_S = 0.1
STUCK_S = 2.0  # a tick that takes longer is late
SAME_REQUEST_S = 0.2  # a person takes longer to press Ctrl-C a second time
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # unless they are forwarded
_ACT_AFTERWARDS = frozenset({signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP})


class Observer(Protocol):
    """Shows a run to the user. An observer that raises an exception is not called again, and the run continues."""

    def event(self, stamped: TimestampedEvent) -> None: ...

    def interrupted(self, number: int, *, at_once: bool) -> None:
        """Handle a signal that was forwarded to the run. If `at_once` is set, the run ends without a grace period."""

    def tick(self) -> bool:
        """Do periodic work, about every `TICK_S` seconds. Return True to be called again without waiting for events."""


class _Shelter:
    """Protects the launcher from exceptions and delays of its observer.

    After an exception it prints the traceback and drops the observer.

    Ticks read logs and may block on a stalled disk, so they run in a thread. While a tick takes longer than
    `STUCK_S`, the observer gets only signals and `Trouble` events, which may be about the disk. It gets other events
    after the tick.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer: Observer | None = observer
        self._ticks: SimpleQueue[bool] = SimpleQueue()  # True: tick; False: end the thread
        self._ticked: SimpleQueue[bool] = SimpleQueue()  # results of ticks
        self._thread: threading.Thread | None = None
        self._is_ticking = False
        self._late: list[TimestampedEvent] = []

    def event(self, stamped: TimestampedEvent) -> None:
        if self._is_ticking and not isinstance(stamped.event, Trouble):
            self._late.append(stamped)
        else:
            self._try(lambda observer: observer.event(stamped))

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._try(lambda observer: observer.interrupted(number, at_once=at_once))

    def tick(self, patience_s: float | None = STUCK_S) -> bool:
        """Let the observer do periodic work. Return True if the observer wants to be called again immediately.

        Waits at most `patience_s` (None: without limit), and only `TICK_S` for a tick that is already late.
        """
        if self._thread is None:
            self._thread = start_thread(self._tick, "observer")
        if not self._is_ticking:
            self._ticks.put(True)
        elif patience_s is not None:
            patience_s = TICK_S
        try:
            again = self._ticked.get(timeout=patience_s)
        except Empty:
            self._is_ticking = True
            return False
        self._is_ticking = False
        late, self._late = self._late, []
        for stamped in late:
            self.event(stamped)
        return again

    def close(self) -> None:
        if self._is_ticking:
            self.tick(None)
        if self._thread is not None:
            self._ticks.put(False)
            self._thread.join()

    def _tick(self) -> None:
        while self._ticks.get():
            self._ticked.put(bool(self._try(lambda observer: observer.tick())))

    def _try(self, call: Callable[[Observer], bool | None]) -> bool | None:
        try:
            return call(self._observer) if self._observer else None
        except Exception:  # noqa: BLE001 - the ranks need their launcher
            self._observer = None
            with suppress(OSError, ValueError):  # stderr is closed
                traceback.print_exc()
            return None


class LauncherLoop:
    """The launcher's event loop. Create it inside `signals_held_back`, after starting the agent or coordinator."""

    def __init__(self, spec: RunSpec, agent: LocalAgent, observer: Observer, server_index: int | None = None) -> None:
        self._server_index = server_index
        self._spec = spec
        self._agent = agent
        self._observer = _Shelter(observer)
        self._interrupts, self._interrupted_s = 0, float("-inf")  # the number of Ctrl-C, and the time of the last one
        self._news: list[tuple[int, bool]] = []
        self._ended: AgentEnded | None = None
        self._kill_now: Callable[[], None] = lambda: agent.signal(signal.SIGQUIT)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(map(int, SIGNALS), self._pass_down),
            int(signal.SIGQUIT): self._pass_down,
            int(signal.SIGTSTP): self._pause,
            **dict.fromkeys(spec.supervision.forward_signals, lambda number, _frame: agent.signal(number)),
        }
        # A signal that was ignored from the start (nohup, a shell's background job) stays ignored.
        self._former = {
            number: signal.signal(number, handler)
            for number, handler in handlers.items()
            if signal.getsignal(number) is not signal.SIG_IGN
        }

    def attend(self) -> int:
        """Block until no process of the run is left; return the run's exit code.

        Afterwards SIGINT, SIGQUIT and SIGTSTP act as before the run. Other signals that would end this process are
        ignored until `restore_signals`, so that the caller can print the result.
        """
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._agent, selectors.EVENT_READ)
                is_open, hurry = True, False
                while is_open:
                    if selector.select(0 if hurry else TICK_S):
                        self._show_interrupts()  # before the events that they caused
                        events = self._agent.read()
                        is_open = events is not None
                        for stamped in events or ():
                            if isinstance(stamped.event, AgentEnded):
                                self._ended = stamped.event
                            self._observer.event(stamped)
                    hurry = self._tick()
            agent_exit_code = self._agent.wait()
            if self._ended is None:
                # The agent died without a report: end its processes, and write the report in its place.
                sweep = OrphanCleanup(
                    self._spec, self._agent.group, agent_exit_code, self._observer.event, self._server_index
                )
                self._kill_now = sweep.kill_now
                self._ended = sweep.run()
            self._agent.forget()
            self._tick()
            self._observer.close()
            for number in self._former.keys() - _ACT_AFTERWARDS:
                signal.signal(number, signal.SIG_IGN)
            self.restore_signals(_ACT_AFTERWARDS)
        except BaseException:
            self._observer.close()
            self.restore_signals()
            raise
        return self._ended.exit_code

    def restore_signals(self, numbers: Collection[int] | None = None) -> None:
        for number in self._former.keys() if numbers is None else self._former.keys() & numbers:
            signal.signal(number, self._former[number])

    def _pass_down(self, number: int, _frame: FrameType | None) -> None:
        """Forward a signal to the agent at once, because the loop may be blocked while it writes to a terminal.

        `timeout -s INT` signals its child and then its process group, so the launcher gets SIGINT twice for one request.
        """
        second = False
        if number == signal.SIGINT:
            now_s = time.monotonic()
            if now_s - self._interrupted_s < SAME_REQUEST_S:
                return
            self._interrupted_s, self._interrupts = now_s, self._interrupts + 1
            second = self._interrupts > 1
            if self._interrupts > 2:  # the agent finishes without this launcher
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
        at_once = second or number == signal.SIGQUIT
        if at_once:
            self._kill_now()
        else:
            self._agent.signal(number)
        self._news.append((number, at_once))

    def _pause(self, number: int, _frame: FrameType | None) -> None:
        """Handle Ctrl-Z: stop the ranks, then this process. Continue both after SIGCONT."""
        self._agent.signal(number)
        os.kill(os.getpid(), signal.SIGSTOP)
        # After `bg`, a rank would read the shell's input. A signal in `_news` ends the run, also in the background.
        while self._spec.stdin is not None and not self._news and in_background(0):
            os.kill(os.getpid(), signal.SIGSTOP)
        self._agent.signal(signal.SIGCONT)

    def _tick(self) -> bool:
        self._show_interrupts()
        return self._observer.tick()

    def _show_interrupts(self) -> None:
        news, self._news = self._news, []
        for number, at_once in news if self._ended is None else ():
            self._observer.interrupted(number, at_once=at_once)
