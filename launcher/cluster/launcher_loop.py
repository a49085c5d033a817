"""The head's part while a run goes on: pass signals down, hand events and time to an observer, sweep if need be."""

from __future__ import annotations

import os
import selectors
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Protocol

from launcher.cluster.orphan_cleanup import OrphanCleanup
from launcher.core.events import AgentEnded, TimestampedEvent
from launcher.core.records import RunSpec
from launcher.engines.local import LocalAgent

TICK_S = 0.1
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)  # unless they are forwarded


class Observer(Protocol):
    """Whoever shows a run to a person. One that raises is not called again; the run goes on."""

    def event(self, stamped: TimestampedEvent) -> None: ...

    def interrupted(self, number: int, *, at_once: bool) -> None:
        """Take note of a signal that was passed down; `at_once` if it ends the run without grace."""

    def tick(self) -> bool:
        """Do what is due about every TICK_S seconds. Return True to be called again at once. Events wait meanwhile."""


class _Shelter:
    """Keeps the head from what its observer raises: told once on stderr, and the observer is let go."""

    def __init__(self, observer: Observer) -> None:
        self._observer: Observer | None = observer

    def event(self, stamped: TimestampedEvent) -> None:
        self._try(lambda observer: observer.event(stamped))

    def interrupted(self, number: int, *, at_once: bool) -> None:
        self._try(lambda observer: observer.interrupted(number, at_once=at_once))

    def tick(self) -> bool:
        return bool(self._try(lambda observer: observer.tick()))

    def _try(self, call: Callable[[Observer], bool | None]) -> bool | None:
        try:
            return call(self._observer) if self._observer else None
        except Exception:  # noqa: BLE001 - whatever it is, ranks need their head
            self._observer = None
            with suppress(OSError, ValueError):  # nobody reads stderr any more
                traceback.print_exc()
            return None


class LauncherLoop:
    """Attends one local agent, or a coordinator. Made inside `signals_held_back`, right after `start_agent`."""

    def __init__(self, spec: RunSpec, agent: LocalAgent, observer: Observer, server_index: int | None = None) -> None:
        """`server_index`: of this machine, where the run has several servers and its agent is attended here."""
        self._server_index = server_index
        self._spec = spec
        self._agent = agent
        self._observer = _Shelter(observer)
        self._interrupts = 0
        self._news: list[tuple[int, bool]] = []
        self._ended: AgentEnded | None = None
        self._kill_now: Callable[[], None] = lambda: agent.signal(signal.SIGQUIT)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            **dict.fromkeys(map(int, SIGNALS), self._pass_down),
            int(signal.SIGQUIT): self._quit,
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
        """Blocks until nothing of the run is left; the exit code of the run. Signals act as before afterwards."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._agent, selectors.EVENT_READ)
                going_on, hurry = True, False
                while going_on:
                    if selector.select(0 if hurry else TICK_S):
                        going_on = self._take_events()
                    hurry = self._tick()
            agent_exit_code = self._agent.wait()
            if self._ended is None:
                # The agent went away without a report: end what it left, and write one in its place.
                sweep = OrphanCleanup(
                    self._spec, self._agent.group, agent_exit_code, self._observer.event, self._server_index
                )
                self._kill_now = sweep.kill_now
                self._ended = sweep.run()
            self._agent.group.remove()
            self._tick()
            return self._ended.exit_code
        finally:
            for number, handler in self._former.items():
                signal.signal(number, handler)

    def _take_events(self) -> bool:
        events = self._agent.read()
        for stamped in events or ():
            if isinstance(stamped.event, AgentEnded):
                self._ended = stamped.event
            self._observer.event(stamped)
        return events is not None

    def _pass_down(self, number: int, _frame: FrameType | None) -> None:
        """Acts here, not in the loop: the loop may hang in a write to a terminal that takes nothing."""
        self._interrupts += number == signal.SIGINT
        at_once = number == signal.SIGINT and self._interrupts > 1
        if at_once:
            self._kill_now()
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a third ends the head itself; the agent finishes alone
        else:
            self._agent.signal(number)
        self._news.append((number, at_once))

    def _quit(self, number: int, _frame: FrameType | None) -> None:
        self._kill_now()
        self._news.append((number, True))

    def _pause(self, number: int, _frame: FrameType | None) -> None:
        """Ctrl-Z: the ranks stop, then this process does, as a shell expects; it goes on here."""
        self._agent.signal(number)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._agent.signal(signal.SIGCONT)

    def _tick(self) -> bool:
        news, self._news = self._news, []
        for number, at_once in news:
            self._observer.interrupted(number, at_once=at_once)
        return self._observer.tick()
