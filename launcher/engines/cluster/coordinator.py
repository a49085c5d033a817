"""The coordinator of a run over several servers: one process beside the head, to which every server's agent connects.

    gathering ──> running ──> every server ended well ─────────────────────────────────┐
        ^            └── a rank failed or hangs, a server is lost ──> judging ──> ending ──> leaving ──> over
        └──────────────────────────────── another attempt ────────────────────────┘

Agents do everything on their servers by the rules of one server. What needs all of them is done here: nothing starts
before all have come and agree, the evidence of all is judged together and by one clock, and the next attempt begins
when nothing of the last one is left anywhere. The head attends this process as it would an agent.

Why connections, and not the output and the signals of the engine: engines cut and mix the lines of several processes,
no signal can carry a verdict, MPICH does not notice that a host is gone, and a run that is started by hand on each
server has no engine. Why not MPI: it ends all agents and their ranks, without grace, as soon as one agent is lost.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import time
from contextlib import suppress
from enum import Enum

from launcher.core import atomic
from launcher.core.errors import EXIT_FAILURE, EXIT_HUNG, EXIT_OK, TlaunchError, UnreadableError
from launcher.core.events import (
    COORDINATOR,
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Awaiting,
    Cause,
    Continued,
    Event,
    Forwarded,
    Judged,
    NotBegun,
    NotRestarting,
    Paused,
    Stamped,
    Stopping,
    Trouble,
)
from launcher.core.messages import (
    AttemptOver,
    Begin,
    Decided,
    Done,
    EndWanted,
    Finish,
    GivingUp,
    Inquire,
    Message,
    Pass,
    Piece,
    Stop,
    Testimony,
    Told,
    Waiting,
    Whole,
)
from launcher.core.proc import ProcessId, identify
from launcher.core.ranges import ranges
from launcher.core.records import RunSpec
from launcher.core.report import Report
from launcher.core.run_dir import RunDir
from launcher.core.verdict import Confidence, Verdict
from launcher.engines.assemble import used_cluster
from launcher.engines.cluster.common_disk import leave_mark, remove_mark
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.cluster.mirrored import Mirrored
from launcher.engines.cluster.peers import Peer
from launcher.engines.cluster.plan import Plan
from launcher.engines.cluster.roll_call import RollCall, take_first_words
from launcher.engines.cluster.tidings import passed_on
from launcher.logs.terminal import shortened
from launcher.runs.progress import Progress
from launcher.supervise.agent import ASKS_TO_STOP, CONTINUES, KILLS_AT_ONCE, PAUSES, HeadLink
from launcher.supervise.attempts import exit_code_of_failure
from launcher.supervise.court import Evidence, from_fields, judged, together
from launcher.supervise.journal import Journal
from launcher.supervise.log_keeper import LogKeeper
from launcher.supervise.restart import Restarts
from launcher.supervise.tree import Ending, something_left
from launcher.supervise.wakeup import Wakeup

BEATS = 5  # questions whether a server is there, within the time after which it is lost
INQUEST_S = 5.0  # for all servers to tell what they know; each looks for less than two seconds
FIRST_TOLD_S, TOLD_EVERY_S = 2.0, 30.0  # who is missing
FAREWELL_S = 10.0  # for the last words of agents whose ranks have all ended
ENGINE_LAST_S = 1.0  # an engine that has ended may have started agents that are about to come
ENGINE_PATIENCE_S = 3.0  # for an engine to end by itself after its agents
ENGINE_GRACE_S = 2.0
CANCELLED = "CANCELLED"  # Slurm's word for what scancel, a time limit and preemption do
SHOWN = 8  # servers in a message; the others are counted


class Phase(Enum):
    GATHERING = "gathering"
    RUNNING = "running"
    JUDGING = "judging"
    ENDING = "ending"
    LEAVING = "leaving"
    OVER = "over"


class Coordinator:
    """Runs in a process of its own, as an agent does. Nothing in its loop waits for a single server."""

    def __init__(self, spec: RunSpec, plan: Plan, head: HeadLink) -> None:
        self._spec = spec
        self._plan = plan
        self._head = head
        self._servers = used_cluster(spec.cluster, spec.layout.world_size).servers
        self._first_server = next(rank.server_index for rank in spec.ranks if rank.global_rank == 0)
        self._run_dir = RunDir(spec.run_dir)
        self._journal = Journal(self._run_dir.events, COORDINATOR, head.events_fd)
        self._progress = Progress(len(spec.ranks))
        self._mark = leave_mark(self._run_dir)
        self._roll_call = RollCall(plan, self._servers, spec.name, self._mark)
        self._log_keeper = LogKeeper({}, None, self._journal)  # of what is mirrored
        self._mirrored = Mirrored(self._run_dir, spec.ranks, lambda trouble: self._record(Trouble(trouble)))
        self._restarts = Restarts(spec.supervision.max_restarts)
        self._forwarded = frozenset(spec.supervision.forward_signals)
        self._asks_to_stop = ASKS_TO_STOP - self._forwarded
        numbers = {signal.SIGCHLD, KILLS_AT_ONCE, PAUSES, CONTINUES, *self._asks_to_stop}
        self._wakeup = Wakeup(numbers.union(signal.Signals(number) for number in self._forwarded))
        self._selector = selectors.DefaultSelector()
        self._engine: EngineProcess | None = None
        self._phase = Phase.GATHERING
        self._deadline: float | None = None  # of the phase, monotonic
        self._attempt = 0
        self._master_port = spec.master_port
        self._testimonies: dict[int, Evidence] = {}
        self._lost: dict[int, str] = {}  # in this attempt: why, by server_index
        self._finish: Finish | None = None  # decided once the end is certain
        self._again = False  # the ranks are to be started again
        self._paused = False
        self._stopped_by_server = False
        self._names: dict[int, tuple[str, ...]] = {}  # what servers are called, by server_index
        self._unkillable: set[int] = set()
        self._events_lost = 0
        self._next_beat = 0.0
        self._next_told = 0.0
        self._started_ns = time.time_ns()

    def run(self) -> int:
        """Coordinate until nothing of the run is left; its exit code. Blocks. Call once, in the main thread."""
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._on_signals)
        self._selector.register(self._head.death_fd, selectors.EVENT_READ, self._on_head_lost)
        self._selector.register(self._plan.listener, selectors.EVENT_READ, self._on_knock)
        self._record(AgentStarted(_identity(os.getpid()), identify(self._head.pid), len(self._spec.ranks)))
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the head forks with signals held back, and so would we
        self._gather()
        while self._phase is not Phase.OVER:
            self._listen()
            self._step()
        return self._report()

    # --- what may happen ---

    def _listen(self) -> None:
        self._beat()
        for peer in (*self._roll_call.strangers, *self._roll_call.peers.values()):
            self._hear(peer)
        if self._journal.backlog:
            self._journal.send()
        for key, _ in self._selector.select(self._timeout_s()):
            key.data()

    def _timeout_s(self) -> float:
        due = [self._next_beat, self._deadline, self._next_told if self._phase is Phase.GATHERING else None]
        if self._roll_call.strangers or self._journal.backlog:
            due.append(time.monotonic() + 0.1)
        return max(0.0, min(moment for moment in due if moment is not None) - time.monotonic())

    def _hear(self, peer: Peer) -> None:
        """Listen to a connection, also for room to write where something waits to be sent."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.channel.wants_write else 0)
        try:
            if self._selector.get_key(peer).events != wanted:
                self._selector.modify(peer, wanted, lambda: self._on_words(peer))
        except KeyError:
            self._selector.register(peer, wanted, lambda: self._on_words(peer))

    def _forget(self, peer: Peer, patience_s: float = 0.0) -> None:
        with suppress(KeyError, ValueError):
            self._selector.unregister(peer)
        peer.close(patience_s)

    def _on_knock(self) -> None:
        for stranger in self._roll_call.accept():
            self._hear(stranger)

    def _on_words(self, peer: Peer) -> None:
        if peer.server_index is None:
            error = self._roll_call.hear(peer, joining=self._phase is Phase.GATHERING)
            if error is not None and self._phase is Phase.GATHERING:
                self._refuse(error)
            return
        if self._phase is Phase.GATHERING:
            error = take_first_words(peer, self._id_of(peer), peer.take(), lambda message: self._take(peer, message))
            if error is not None:
                self._refuse(error)
            return
        for message in peer.take():
            self._take(peer, message)

    def _take(self, peer: Peer, message: Message) -> None:
        """Of an agent of a known server."""
        assert peer.server_index is not None, "it has been welcomed"
        match message:
            case Told(line=line):
                for stamped in passed_on(line, peer.clock.ahead_ns, self._servers[peer.server_index].server_id):
                    self._keep(stamped)
            case Testimony(attempt=attempt) if attempt == self._attempt:
                with suppress(ValueError):
                    self._testimonies[peer.server_index] = from_fields(message.evidence)
                self._inquire()
            case AttemptOver(attempt=attempt) if attempt == self._attempt:
                peer.over = True
                if message.left:
                    self._refuse_restart(f"what is left on server {self._id_of(peer)} cannot be killed")
                if message.master_port is not None:
                    self._master_port = message.master_port
            case EndWanted(signal=number):
                self._end_as_wanted(number)
            case GivingUp(reason=reason):
                peer.lost = reason
            case Done():
                peer.done = True
                self._unkillable.update(message.unkillable)
                self._events_lost += message.events_lost
            case _:
                self._mirror(peer, message)

    def _mirror(self, peer: Peer, message: Message) -> None:
        """Keep what a server's ranks wrote to its own disk. While that comes, the end waits for the rest of it."""
        if peer.server_index is None or peer.ready is None or peer.ready.shares_files:
            return
        if not isinstance(message, Piece | Whole):
            return
        kept = self._mirrored.take(peer.server_index, message, peer.clock.ahead_ns)
        if kept is not None:
            peer.send(kept)
        if self._phase is Phase.LEAVING and self._engine_patience_ends is None:
            self._deadline = time.monotonic() + FAREWELL_S

    def _end_as_wanted(self, number: int) -> None:
        """An agent was asked, by that signal."""
        self._stop(Cause.STOPPED, number, by_server=True)
        if number == KILLS_AT_ONCE:
            self._send_all(Pass(number))

    def _on_signals(self) -> None:
        for number in self._wakeup.take():
            if number == KILLS_AT_ONCE or number in self._asks_to_stop:
                self._stop(Cause.STOPPED, number)
            if number == KILLS_AT_ONCE or number in self._forwarded:
                self._send_all(Pass(number))
            if number in self._forwarded:
                self._record(Forwarded(number))
            if number in {PAUSES, CONTINUES} and self._paused != (number == PAUSES):
                self._paused = number == PAUSES
                self._send_all(Pass(number))
                self._record(Paused() if self._paused else Continued())

    def _on_head_lost(self) -> None:
        self._selector.unregister(self._head.death_fd)
        self._journal.forget_head()
        self._stop(Cause.HEAD_LOST)

    # --- who is there ---

    def _beat(self) -> None:
        """Ask every server whether it is there, now and then, and find out who is not."""
        now = time.monotonic()
        if now - self._next_beat > self._plan.silence_s / BEATS:  # this process was stopped for a while, or begins
            for peer in self._roll_call.peers.values():
                peer.channel.heard_at = now
        if now >= self._next_beat:
            self._next_beat = now + self._plan.silence_s / BEATS
            self._log_keeper.take()
            for peer in self._roll_call.peers.values():
                peer.ask()
        for stranger in self._roll_call.dismiss():
            self._forget(stranger, ENGINE_LAST_S)
        for server_index, peer in list(self._roll_call.peers.items()):
            if peer.lost is None and peer.silent_s > self._plan.silence_s:
                peer.lost = f"nothing was heard of it for {self._plan.silence_s:g} s"
            if peer.lost is not None:
                self._lose(server_index, peer)

    def _lose(self, server_index: int, peer: Peer) -> None:
        self._forget(peer)
        del self._roll_call.peers[server_index]
        if peer.done or self._phase in {Phase.GATHERING, Phase.LEAVING}:
            return
        self._lost[server_index] = peer.lost or ""
        self._record(Trouble(f"server {self._id_of(peer)} is lost: {peer.lost}"))
        self._inquire()

    def _id_of(self, peer: Peer) -> str:
        return self._servers[peer.server_index].server_id if peer.server_index is not None else peer.address

    def _send_all(self, message: Message) -> None:
        for peer in self._roll_call.peers.values():
            peer.send(message)

    # --- from phase to phase ---

    def _enter(self, phase: Phase, limit_s: float | None = None) -> None:
        self._phase = phase
        self._deadline = None if limit_s is None else time.monotonic() + limit_s

    def _step(self) -> None:
        match self._phase:
            case Phase.GATHERING:
                self._step_gathering()
            case Phase.RUNNING | Phase.ENDING:
                if all(peer.over for peer in self._roll_call.peers.values()):
                    self._go_on()
            case Phase.JUDGING:
                self._step_judging()
            case Phase.LEAVING:
                self._step_leaving()
            case Phase.OVER:
                pass

    @property
    def _overdue(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _gather(self) -> None:
        """Have an agent on every server, by the engine or by waiting for those who are started by hand."""
        self._enter(Phase.GATHERING, self._plan.join_timeout_s)
        self._gathering_since = time.monotonic()
        self._next_told = self._gathering_since + FIRST_TOLD_S
        environment = dict(os.environ)
        try:
            self._engine = EngineProcess(self._plan.engine, environment, self._spec.cwd, self._run_dir.engine_log)
        except UnreadableError as error:
            self._refuse(error)

    def _step_gathering(self) -> None:
        missing = self._roll_call.missing
        if not missing:
            self._begin()
            return
        engine, now = self._engine, time.monotonic()
        awaited = self._plan.brings_all or self._servers[self._first_server].server_id in missing
        if engine is not None and engine.ended and awaited and self._engine_ended_long_ago(now):
            self._refuse(self._not_come(f"{engine.name} ended with exit code {engine.exit_code}", missing))
        elif self._overdue:
            self._refuse(self._not_come(f"after {self._plan.join_timeout_s:g} s (--join-timeout)", missing))
        elif now >= self._next_told:
            self._next_told = now + TOLD_EVERY_S
            self._record(Awaiting(missing, now - self._gathering_since))
            self._send_all(Waiting(missing))

    def _engine_ended_long_ago(self, now: float) -> bool:
        self._deadline = min(self._deadline or now, now + ENGINE_LAST_S)
        return now >= self._deadline

    def _not_come(self, why: str, missing: tuple[str, ...]) -> TlaunchError:
        if not self._plan.brings_all or self._engine is None:
            hint = "is the command started there, and can it reach this one? tlaunch doctor looks"
            return TlaunchError(f"{_listed(missing)} did not come: {why}", hint=hint)
        found = self._engine.why_not(missing)
        said = [f"{server_id}: {reason}" for server_id, reason in found.items()] or self._engine.last_lines()
        return TlaunchError(
            f"{_listed(tuple(found) or missing)} did not come: {why}" + "".join(f"\n| {line}" for line in said),
            hint=f"what {self._engine.name} said is in {self._run_dir.engine_log}; tlaunch doctor looks at every server",
        )

    def _refuse(self, error: TlaunchError) -> None:
        """Nothing starts, also where an attempt was to be repeated."""
        self._again = False
        self._record(NotBegun(error.message, error.hint))
        self._record(Stopping(Cause.FAILED, self._spec.supervision.grace_from(time.time())))
        self._finish = Finish(Cause.FAILED, error.exit_code)
        self._leave()

    def _begin(self) -> None:
        first = self._roll_call.peers[self._first_server].ready
        if first is not None and first.master_port is not None:
            self._master_port = first.master_port
        self._keep_logs_small()
        self._start_attempt()

    def _keep_logs_small(self) -> None:
        """Those that are copied here: agents see to the others."""
        far = {index for index, peer in self._roll_call.peers.items() if peer.ready and not peer.ready.shares_files}
        ranks = [rank.global_rank for rank in self._spec.ranks if rank.server_index in far]
        if ranks:
            logs = {global_rank: self._run_dir.train_log(global_rank) for global_rank in ranks}
            self._log_keeper = LogKeeper(logs, self._spec.supervision.log_max_bytes, self._journal)
            self._log_keeper.start()

    def _start_attempt(self) -> None:
        for index, peer in self._roll_call.peers.items():
            self._names[index] = (self._servers[index].server_id, *([peer.hello.host] if peer.hello else []))
        self._testimonies, self._lost, self._again = {}, {}, False
        self._finish = None  # that of the attempt before was undone by starting again
        for peer in self._roll_call.peers.values():
            peer.over = False
        self._record(AttemptStarted(self._attempt, self._master_port))
        self._send_all(Begin(self._attempt, self._master_port))
        self._enter(Phase.RUNNING)

    def _inquire(self) -> None:
        """Something failed: ask all servers what they know."""
        if self._phase is Phase.RUNNING:
            self._enter(Phase.JUDGING, INQUEST_S)
            for server_index, peer in self._roll_call.peers.items():
                if server_index not in self._testimonies:
                    peer.send(Inquire(self._attempt))

    def _step_judging(self) -> None:
        """Judge once all have been heard. Who is silent may be lost, and then that is the cause: wait to see."""
        silent = [peer for index, peer in self._roll_call.peers.items() if index not in self._testimonies]
        if not silent:
            self._judge()
        elif self._overdue:
            doubtful = [peer for peer in silent if peer.silent_s > 2 * self._plan.silence_s / BEATS]
            if doubtful:
                self._deadline = time.monotonic() + self._plan.silence_s / BEATS
            else:
                self._judge()

    def _judge(self) -> None:
        ahead_ns = {index: peer.clock.ahead_ns for index, peer in self._roll_call.peers.items()}
        evidence = together(self._testimonies, ahead_ns)
        verdict = judged(evidence, self._journal)
        if self._lost and verdict.confidence is not Confidence.CERTAIN:
            verdict = self._verdict_of_loss(verdict)
        self._record(Judged(verdict))
        self._again = self._restarts.decide(verdict, evidence.highest_step)
        if self._restarts.refusal:
            self._refuse_restart(self._restarts.refusal)
        if self._again and self._lost and not self._plan.brings_all:
            self._refuse_restart("a lost server that was started by hand has to be started by hand again")
        cause = Cause.HUNG if evidence.hung and not self._lost else Cause.FAILED
        self._record(Stopping(cause, self._spec.supervision.grace_from(time.time()), None, self._again))
        self._send_all(Decided(self._attempt, verdict, cause, self._again_here))
        self._finish = Finish(cause, EXIT_HUNG if cause is Cause.HUNG else EXIT_FAILURE)
        self._enter(Phase.ENDING)

    @property
    def _again_here(self) -> bool:
        """Whether the same agents start ranks again; else agents are started anew."""
        return self._again and not self._lost and not self._plan.engine_anew

    def _verdict_of_loss(self, verdict: Verdict) -> Verdict:
        index, why = next(iter(self._lost.items()))
        server = self._servers[index]
        lost_ranks = ranges(device.global_rank for device in server.devices)
        reason = f"server {server.server_id} with rank{'s' * (len(server.devices) > 1)} {lost_ranks} was lost: {why}"
        return Verdict(None, Confidence.CERTAIN, reason, verdict.failures, verdict.stacks, server=server.server_id)

    def _refuse_restart(self, reason: str) -> None:
        self._again = False
        self._record(NotRestarting(reason))

    def _stop(self, cause: Cause, number: int | None = None, *, by_server: bool = False) -> None:
        """Somebody wants the end; `by_server`: an agent was asked, perhaps by an engine that gives up."""
        self._stopped_by_server = by_server
        if self._phase in {Phase.ENDING, Phase.LEAVING, Phase.OVER}:
            if self._again:
                self._refuse_restart("the end was asked for meanwhile")
            return
        self._record(Stopping(cause, self._spec.supervision.grace_from(time.time()), number))
        self._finish = Finish(cause, 128 + number if number else EXIT_FAILURE)
        if self._phase is Phase.GATHERING:
            self._leave()
            return
        self._send_all(Stop(cause, number))
        self._enter(Phase.ENDING)

    def _go_on(self) -> None:
        """Nothing of the attempt is left on any server that is there."""
        if self._again_here:
            self._attempt += 1
            self._start_attempt()
            return
        if self._finish is None:
            self._finish = Finish(Cause.FINISHED, EXIT_OK)
        elif self._finish.cause is Cause.FAILED and self._progress.verdict and not self._lost:
            exits = self._progress.attempts[-1].exits
            self._finish = Finish(Cause.FAILED, exit_code_of_failure(self._progress.verdict, exits))
        self._leave()

    def _leave(self) -> None:
        assert self._finish is not None, "it is decided"
        self._send_all(self._finish)
        self._enter(Phase.LEAVING, FAREWELL_S)
        self._engine_patience_ends: float | None = None
        self._engine_gave_up = False  # it has ended by itself
        self._ending: Ending | None = None

    def _step_leaving(self) -> None:
        """First the agents go, then the engine, by itself or not; then whatever it left."""
        if any(not peer.done for peer in self._roll_call.peers.values()) and not self._overdue:
            return
        now = time.monotonic()
        if self._engine_patience_ends is None:
            self._log_keeper.close(finish=not self._lost)  # before anything of this process's children is looked for
            self._engine_patience_ends = now + (0.0 if self._lost else ENGINE_PATIENCE_S)
            self._deadline = self._engine_patience_ends
        engine_over = self._engine is None or self._engine.ended
        if self._ending is None:
            self._engine_gave_up = engine_over
        if engine_over and not something_left():
            self._be_over()
            return
        if self._ending is None and (engine_over or now >= self._engine_patience_ends):
            leaders = () if engine_over or self._engine is None else (self._engine.pid,)
            self._ending = Ending(ENGINE_GRACE_S, lambda: leaders)
        if self._ending is not None:
            self._ending.step()
            if self._ending.in_vain:
                self._be_over()
            else:
                self._deadline = now + (0.1 if self._ending.timeout_s is None else min(0.1, self._ending.timeout_s))

    def _blame_engine(self, engine: EngineProcess) -> None:
        """Agents were asked to end, and nobody asked us: the engine has lost a server, or somebody has ended it."""
        said = engine.last_lines()
        if any(CANCELLED in line for line in said):  # a person, a limit or a more urgent job: no failure
            self._record(Trouble(shortened(f"{engine.name}: {said[-1]}")))
        elif said:
            index = next((index for index, names in self._names.items() if _mentioned(names, said)), None)
            server = None if index is None else self._servers[index].server_id
            reason = shortened(f"{engine.name} gave the run up: {' '.join(said)}")
            self._record(Judged(Verdict(None, Confidence.LIKELY, reason, server=server)))
            self._finish = Finish(Cause.FAILED, EXIT_FAILURE)

    def _be_over(self) -> None:
        if self._stopped_by_server and self._plan.brings_all and self._engine and self._engine_gave_up:
            self._blame_engine(self._engine)
        if self._engine is not None:
            self._engine.clean_up()
        for peer in list(self._roll_call.peers.values()):
            self._forget(peer)
        self._roll_call.peers.clear()
        if self._again:
            self._attempt += 1
            self._finish, self._again = None, False  # if agents cannot be had any more, that is the end
            self._gather()
        else:
            self._enter(Phase.OVER)

    # --- what is told ---

    def _record(self, event: Event) -> None:
        self._keep(Stamped(time.time_ns(), COORDINATOR, event))

    def _keep(self, stamped: Stamped) -> None:
        self._progress.take(stamped)
        self._journal.keep(stamped)

    def _report(self) -> int:
        assert self._finish is not None, "it is over"
        report = Report(
            run=self._spec.name,
            server_index=COORDINATOR,
            cause=self._finish.cause,
            exit_code=self._finish.exit_code,
            started_ns=self._started_ns,
            ended_ns=time.time_ns(),
            attempts=self._progress.attempts,
            not_restarting=self._progress.not_restarting,
            unkillable=tuple(sorted(self._unkillable)),
            events_lost=self._journal.lost + self._events_lost,
        )
        try:
            atomic.write_text(self._run_dir.report, report.to_json())
        except OSError as error:
            self._record(Trouble(f"cannot write {self._run_dir.report}: {error.strerror}"))
        remove_mark(self._run_dir, self._mark)
        self._record(AgentEnded(self._finish.cause, self._finish.exit_code))
        self._journal.close(self._head.death_fd)
        self._selector.close()
        self._wakeup.close()
        return self._finish.exit_code


def _mentioned(names: tuple[str, ...], lines: list[str]) -> bool:
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names for line in lines)


def _listed(server_ids: tuple[str, ...]) -> str:
    shown = ", ".join(server_ids[:SHOWN]) + (f" and {len(server_ids) - SHOWN} more" if len(server_ids) > SHOWN else "")
    return f"server{'s' * (len(server_ids) > 1)} {shown}"


def _identity(pid: int) -> ProcessId:
    return identify(pid) or ProcessId(pid, 0, os.uname().nodename, "")
