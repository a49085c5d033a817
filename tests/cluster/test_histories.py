"""A thousand attempts that fail, over servers that are lost, frozen or parted: no verdict is certain and wrong.

Histories are drawn by lot: what truly happened, and what the coordinator hears of it. The truth is a list of causes
with their true times. From it follow the failures of other ranks, what each agent notices of all that (late where it
was held up, not at all once it is lost), what it testifies and when, by a clock of its own, and what comes to the
coordinator. `hold` plays that through the real controller and evidence, as a coordinator does. Not drawn is what one server cannot
tell either: a cause among what follows from a rank that is missed, and one right after a doubtful one beside it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from launcher.cluster.agent_connection import Clock
from launcher.cluster.server_evidence import ServerEvidence
from launcher.control import events, orders
from launcher.control.controller import Phase, RunController
from launcher.control.events import Setup
from launcher.core.codec import encode
from launcher.core.records import Device, Server
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import Evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from launcher.supervise.event_log import EventLog

COUNT = 1000
START_S = 1_700_000_000.0
NEVER = float("inf")
SILENCE_S, BEAT_S, INQUEST_S = 5.0, 1.0, 5.0
LATE_S = 1.0
CLOSED = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:34185"
TIMED_OUT = "[gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 2000ms for recv operation to complete"
STRANGE = "the other end does not answer as it should"  # no table of symptoms knows that it is a consequence
WAITING = RankStack("running", "in all_reduce, called at a.py:4 in step", "a.py:4 in step", in_collective=True)
BUSY = RankStack("running", "at a.py:9 in save: write(model)", "a.py:9 in save")
SLEEPING = RankStack("running", "at a.py:7 in load: time.sleep(900)", "a.py:7 in load")
STOPPED = RankStack("stopped", "stopped (SIGSTOP)")
OWN_KINDS = ("own", "own", "http", "alike")
KINDS = (*OWN_KINDS, "stop", "sleep", "closed", "closed", "silent", "silent", "partition")
COUNTS = (1, 1, 2, 2, 3)  # of causes
LOSSES = ("closed", "silent")
MISSED = ("stop", "sleep", "partition")


@dataclass(frozen=True)
class Cause:
    """Something that nobody else caused, and that is enough for the attempt to fail."""

    kind: str
    time_s: float
    rank: int | None = None
    server: int | None = None  # of the rank, or the one that is lost
    effect_s: float = NEVER  # when others first suffer from it; of what does not end a rank that is its time


@dataclass
class Rank:
    """What truly became of one."""

    number: int
    server: int
    fails_s: float = NEVER  # the exception, or the end where there is none
    ends_s: float = NEVER
    status: int | None = None
    failure: tuple[str, str] | None = None  # type and message of an exception that its hook notes
    tail: str = ""
    open_mpi: bool = False
    absent: tuple[float, RankStack] | None = None  # since when, doing what
    busy: bool = False  # with its own work all the time, which is no fault


@dataclass
class History:
    seed: int
    servers: tuple[Server, ...]
    ranks: list[Rank]
    causes: list[Cause] = field(default_factory=list)
    lost: dict[int, tuple[float, str]] = field(default_factory=dict)
    frozen: dict[int, tuple[float, float]] = field(default_factory=dict)  # agents, from when to when
    away: tuple[float, float] = (NEVER, NEVER)  # the coordinator itself
    hang_timeout_s: float | None = None
    offsets: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    told: dict[int, set[int]] = field(default_factory=dict)  # by server: ranks whose failure the coordinator heard of
    decided_s: float = NEVER

    @property
    def first(self) -> Cause:
        """That the attempt failed of."""
        return min(self.causes, key=lambda cause: min(cause.effect_s, NEVER))


def draw(seed: int, kinds: tuple[str, ...] = KINDS, counts: tuple[int, ...] = COUNTS) -> History:
    source = random.Random(seed)
    count, size = source.randint(2, 4), source.randint(1, 3)
    numbers = itertools.count()
    servers = tuple(
        Server(f"10.0.0.{index + 1}", tuple(Device(local, next(numbers)) for local in range(size)))
        for index in range(count)
    )
    ranks = [Rank(device.global_rank, index) for index, server in enumerate(servers) for device in server.devices]
    history = History(seed, servers, ranks)
    history.hang_timeout_s = source.choice([None, 3.0])
    history.offsets = [source.uniform(-60, 60) for _ in servers]
    history.errors = [source.choice([0.0002, 0.002, 0.02, 0.2]) for _ in servers]
    for _ in range(source.choice([0, 0, 1])):
        begin = 10 + source.uniform(-3, 3)
        history.frozen[source.randrange(count)] = (begin, begin + source.uniform(0.3, SILENCE_S - 1.5))
    if source.random() < 0.1:
        begin = 10 + source.uniform(-2, 2)
        history.away = (begin, begin + source.uniform(0.3, 4))
    if source.random() < 0.4:
        source.choice(ranks).busy = True
    _Plot(history, source, kinds).act(source.choice(counts))
    return history


class _Plot:
    """Causes and their consequences, in the order of their times."""

    def __init__(self, history: History, source: random.Random, kinds: tuple[str, ...]) -> None:
        self._history, self._source, self._kinds = history, source, kinds

    def act(self, count: int) -> None:
        source, at_s = self._source, 10.0
        for number in range(count):
            if number:
                at_s += source.choice([0.0005, 0.01, 0.1, 0.5, 1.5, 4]) * source.uniform(0.5, 1.5)
            # What follows from a rank that is missed is nobody's fault: no other cause may hide among it.
            if any(cause.effect_s <= at_s and cause.kind in MISSED for cause in self._history.causes):
                return
            kind = source.choice(self._kinds)
            if kind in MISSED and any(cause.kind in MISSED for cause in self._history.causes):
                continue  # of two that are missed neither is more to blame
            self._cause(kind, at_s)

    def _cause(self, kind: str, at_s: float) -> None:
        history, source = self._history, self._source
        if kind == "partition":
            self._missed(at_s, None, kind, None)
        elif kind in LOSSES:
            server = source.randrange(len(history.servers))
            if server not in history.lost:
                self._lose(server, kind, at_s)
        elif living := [rank for rank in history.ranks if rank.fails_s > at_s and rank.absent is None]:
            rank = source.choice(living)
            if kind in OWN_KINDS and any(
                cause.kind == "http" and cause.server == rank.server and at_s - cause.time_s < LATE_S
                for cause in history.causes
            ):
                return  # of one server, such an end is taken for what led to the lost connection: see root_cause.py
            if kind in OWN_KINDS:
                self._fail(rank, kind, at_s)
                self._close([rank], at_s, rank.server)
            else:
                self._missed(at_s, rank, kind, rank.server)

    def _fail(self, rank: Rank, kind: str, at_s: float) -> None:
        source = self._source
        rank.fails_s, rank.status = at_s, 1
        rank.failure, rank.tail, rank.open_mpi = None, "", False
        rank.ends_s = at_s + source.choice([0.02, 0.2, 2.5]) * source.uniform(0.5, 1.5)
        if kind == "http":
            rank.failure = ("ConnectionResetError", "[Errno 104] Connection reset by peer")
        elif kind == "alike" or source.random() < 0.6:
            rank.failure = ("ValueError", "alike") if kind == "alike" else (f"Error{rank.number}", "of its own")
        else:
            rank.ends_s, rank.status = at_s, source.choice([-11, -9, -6, 3 + rank.number])
        self._history.causes.append(Cause(kind, at_s, rank.number, rank.server, at_s))

    def _close(self, dead: list[Rank], at_s: float, server: int) -> None:
        """Others lose their connections to ranks that end: most fail of it, in one way or another."""
        gone = {rank.number for rank in dead}
        for rank in self._history.ranks:
            if rank.number in gone or rank.absent or rank.busy or self._source.random() < 0.3:
                continue
            self._follow(rank, at_s + self._source.uniform(0.0003, 0.03), self._source.random())

    def _follow(self, rank: Rank, at_s: float, how: float) -> None:
        cut_off = self._history.lost.get(rank.server, (NEVER, ""))[0]
        if rank.fails_s <= at_s or cut_off <= at_s:
            return
        rank.fails_s, rank.ends_s, rank.status = at_s, at_s + self._source.uniform(0.005, 0.3), 1
        rank.failure, rank.tail, rank.open_mpi = None, "", False
        if how < 0.6:
            rank.failure = ("RuntimeError", CLOSED)
        elif how < 0.75:
            rank.ends_s, rank.status, rank.open_mpi = at_s, 14, True
        elif how < 0.9:
            rank.ends_s, rank.status, rank.tail = at_s, -6, CLOSED
        else:
            rank.failure = ("ProtocolError", STRANGE)

    def _missed(self, at_s: float, rank: Rank | None, kind: str, server: int | None) -> None:
        """Others wait for it until they, or who watches over them, lose patience."""
        history, source = self._history, self._source
        if rank is not None:
            rank.absent = (at_s, STOPPED if kind == "stop" else SLEEPING)
        effect_s = NEVER if history.hang_timeout_s is None else at_s + history.hang_timeout_s
        waits = [one for one in history.ranks if one is not rank and not one.busy and one.fails_s == NEVER]
        if waits and (history.hang_timeout_s is None or source.random() < 0.5):
            for one in source.sample(waits, source.randint(1, len(waits))):
                timed_out_s = at_s + 2 + source.uniform(0, 0.3)
                if one.fails_s > timed_out_s and history.lost.get(one.server, (NEVER, ""))[0] > timed_out_s:
                    one.fails_s, one.ends_s, one.status = timed_out_s, timed_out_s + source.uniform(0.005, 0.3), 1
                    one.failure = ("RuntimeError", TIMED_OUT)
                    effect_s = min(effect_s, timed_out_s)
        history.causes.append(Cause(kind, at_s, None if rank is None else rank.number, server, effect_s))

    def _lose(self, server: int, kind: str, at_s: float) -> None:
        history = self._history
        history.lost[server] = (at_s, kind)
        history.causes.append(Cause(kind, at_s, None, server, at_s))
        dead = [rank for rank in history.ranks if rank.server == server]
        if kind == "closed":
            self._close(dead, at_s + self._source.uniform(0.0, 0.05), server)


@dataclass(frozen=True)
class _Testimony:
    sent_s: float
    evidence: Evidence


class _Agent:
    """What the agent of one server notices, and tells when it is asked or has noticed a failure itself."""

    def __init__(self, history: History, server: int, source: random.Random) -> None:
        self._history, self._server, self._source = history, server, source
        self._ranks = [rank for rank in history.ranks if rank.server == server]
        self._slow_s = source.choice([0.0, 0.0, 0.0, 0.8])  # a busy machine
        self.gone_s = history.lost.get(server, (NEVER, ""))[0]
        self._noticed = {rank.number: self.wakes(rank.ends_s) + source.uniform(0.0005, 0.005) + source.random() * self._slow_s
                         for rank in self._ranks}  # fmt: skip
        self._takes_s = source.choice([0.1, 0.15, 0.4, 1.5])

    def wakes(self, at_s: float) -> float:
        begin, end = self._history.frozen.get(self._server, (NEVER, NEVER))
        return end if begin <= at_s < end else at_s

    @property
    def notes_s(self) -> float:
        """When it notices by itself that something is wrong."""
        hangs_s = NEVER
        if self._history.hang_timeout_s is not None:
            stalled = [cause.time_s for cause in self._history.causes if cause.kind not in OWN_KINDS]
            hangs_s = self.wakes(
                min(stalled, default=NEVER) + self._history.hang_timeout_s + self._source.uniform(0, 1)
            )
        return min([hangs_s, *self._noticed.values()])

    def ends_told(self) -> list[tuple[float, int]]:
        return [
            (self._noticed[rank.number], rank.number)
            for rank in self._ranks
            if self._noticed[rank.number] < self.gone_s
        ]

    def testify(self, asked_s: float) -> _Testimony | None:
        sent_s = self.wakes(self.wakes(asked_s) + self._takes_s)
        if sent_s >= self.gone_s:
            return None
        for rank in self._ranks:  # whoever asks living ranks where they are finds out who has ended
            looked_s = max(self.wakes(rank.ends_s), self.wakes(asked_s)) + 0.005
            self._noticed[rank.number] = min(self._noticed[rank.number], looked_s)
        ended = sorted(
            (rank for rank in self._ranks if self._noticed[rank.number] < sent_s),
            key=lambda rank: (self._noticed[rank.number], rank.ends_s),
        )
        known = self._source.random() < 0.8
        evidence = [self._of_ended(rank, place, known=known or len(ended) == 1) for place, rank in enumerate(ended)]
        evidence += [self._of_living(rank, sent_s) for rank in self._ranks if rank not in ended]
        hangs = self._history.hang_timeout_s is not None and all(rank.ends_s > sent_s for rank in self._ranks)
        stalled = [cause.time_s for cause in self._history.causes if cause.kind not in OWN_KINDS]
        hung = hangs and min(stalled, default=NEVER) + self._history.hang_timeout_s < sent_s
        return _Testimony(sent_s, Evidence(tuple(evidence), tuple(rank.number for rank in self._ranks) if hung else ()))

    def _local_ns(self, true_s: float) -> int:
        return int((START_S + true_s + self._history.offsets[self._server]) * 1e9)

    def _record(self, rank: Rank) -> FailureRecord | None:
        if rank.failure is None:
            return None
        name, message = rank.failure
        return FailureRecord(self._local_ns(rank.fails_s), 1, "exception", name, message, "a.py:1 in f", "")

    def _of_ended(self, rank: Rank, place: int, *, known: bool) -> RankEvidence:
        noticed_s = self._noticed[rank.number]
        frozen_s, thawed_s = self._history.frozen.get(self._server, (0.0, 0.0))
        late_s = max(LATE_S, thawed_s - frozen_s + 0.5) if frozen_s <= rank.ends_s < thawed_s else LATE_S
        return RankEvidence(
            rank.number, rank.status, self._local_ns(noticed_s), place, order_known=known, late_s=late_s,
            failure=self._record(rank), log_tail=rank.tail, open_mpi=rank.open_mpi,
        )  # fmt: skip

    def _of_living(self, rank: Rank, now_s: float) -> RankEvidence:
        failure = self._record(rank) if rank.fails_s < now_s else None
        stack = BUSY if rank.busy else WAITING
        if rank.absent is not None and rank.absent[0] < now_s:
            stack = rank.absent[1]
        return RankEvidence(rank.number, None, None, None, failure=failure, stack=stack)


class _Coordinator:
    """Drives the controller through a history: what comes when, whom it asks, whom it loses, when it decides."""

    def __init__(self, history: History, event_log) -> None:
        self._source = random.Random(history.seed + 1)
        self._history = history
        self._agents = [_Agent(history, index, self._source) for index in range(len(history.servers))]
        self._now_s = 4.0
        self._evidence = ServerEvidence(history.servers, event_log, history.hang_timeout_s, self._now_ns)
        ids = tuple(server.server_id for server in history.servers)
        self._controller = RunController(Setup(ids, evidence_limit_s=INQUEST_S, look_again_s=BEAT_S))
        self._verdict = None
        self._queue: list = []
        self._places = itertools.count()
        self._asked: list[list[float]] = [[] for _ in history.servers]
        self._failed: list[int] = []

    def _now_ns(self) -> int:
        return int((START_S + self._now_s) * 1e9)

    def _post(self, at_s: float, kind: str, server: int, what=None) -> None:
        if at_s < NEVER:
            heapq.heappush(self._queue, (self._here(at_s), next(self._places), kind, server, what))

    def _here(self, at_s: float) -> float:
        begin, end = self._history.away
        return end if begin <= at_s < end else at_s

    def _way_s(self) -> float:
        return self._source.uniform(0.0001, 0.003)

    def run(self):
        self._report(events.ServersReady(4000))
        for index, agent in enumerate(self._agents):
            self._ask(index, 4.5 - self._source.random())
            for at_s, rank in agent.ends_told():
                self._post(at_s + self._way_s(), "ended", index, rank)
            if (testimony := agent.testify(agent.notes_s)) is not None and agent.notes_s < NEVER:
                self._post(testimony.sent_s + self._way_s(), "testimony", index, testimony.evidence)
            if agent.gone_s < NEVER and self._history.lost[index][1] == "closed":
                self._post(agent.gone_s + self._way_s(), "closed", index)
        for tick in range(300):
            self._post(5.0 + tick * 0.1, "tick", -1)
        while self._queue:
            self._now_s, _, kind, server, what = heapq.heappop(self._queue)
            getattr(self, f"_on_{kind}")(server, what)
            silent = [
                index for index in range(len(self._agents)) if self._now_s - self._answered(index)[0] > 2 * BEAT_S
            ]
            self._report(events.Tick(silent))
            if self._verdict is not None:
                self._history.decided_s = self._now_s
                return self._verdict
        return None

    def _ask(self, server: int, at_s: float) -> None:
        self._asked[server].append(at_s)

    def _answered(self, server: int) -> tuple[float, float | None]:
        """When the last question was asked that has been answered by now, and the first after that."""
        agent = self._agents[server]
        done = [
            at_s
            for at_s in self._asked[server]
            if agent.wakes(at_s + 0.001) < agent.gone_s and agent.wakes(at_s + 0.001) + 0.002 <= self._now_s
        ]
        rest = [at_s for at_s in self._asked[server] if at_s not in done]
        return max(done), min(rest, default=None)

    def _on_ended(self, server: int, rank: int) -> None:
        self._failed.append(rank)
        self._history.told.setdefault(server, set()).add(rank)

    def _on_testimony(self, server: int, evidence: Evidence) -> None:
        if server in self._evidence.lost:
            return
        clock, error_s = Clock(), self._history.errors[server]
        wrong_s = self._source.uniform(-error_s, error_s)
        offset_s = self._history.offsets[server]
        clock.take(self._now_ns() - int((error_s - offset_s - wrong_s) * 1e9), int(2 * error_s * 1e9), self._now_ns())
        self._report(events.EvidenceReport(server, 40000, self._evidence.take(server, encode(evidence), clock)))

    def _on_closed(self, server: int, _) -> None:
        if server not in self._evidence.lost:
            self._lose(server, "the connection was closed", silent=False)

    def _on_tick(self, _server: int, _what) -> None:
        for index, asked in enumerate(self._asked):
            if self._now_s - asked[-1] >= BEAT_S:
                self._ask(index, self._now_s)
            answered_s, _ = self._answered(index)
            heard_s = min(
                self._now_s, max(answered_s, self._history.away[1] if self._now_s >= self._history.away[1] else 0.0)
            )
            if index not in self._evidence.lost and self._now_s - heard_s > SILENCE_S:
                self._lose(index, "nothing was heard of it for 5 s", silent=True)

    def _on_reach(self, server: int, order: orders.ProbeReach) -> None:
        """Where the history parts the first two servers, neither reaches the other."""
        parted = any(cause.kind == "partition" for cause in self._history.causes)
        missed = [to for to, _ in order.targets if parted and {server, to} == {0, 1}]
        unreached = tuple((to, "no answer") for to in missed)
        self._report(events.ProbeResult(server, order.number, unreached))

    def _lose(self, server: int, why: str, *, silent: bool) -> None:
        since_s, unanswered_s = self._answered(server)
        probably_s = unanswered_s if silent and unanswered_s is not None else self._now_s
        self._evidence.lose(
            server, why, since_ns=int((START_S + since_s) * 1e9), probably_ns=int((START_S + probably_s) * 1e9),
            failed=list(self._failed),
        )  # fmt: skip
        self._report(events.ServerGone(server))
        self._report(events.ServerLost(server, why))

    def _report(self, event: events.Event) -> None:
        for order in self._controller.take(event, self._now_s, START_S + self._now_s):
            match order:
                case orders.CollectEvidence(servers=servers):
                    for server in servers:
                        self._request(server)
                case orders.ProbeReach(server=server):
                    self._post(self._now_s + 2 * self._way_s(), "reach", server, order)
                case orders.Diagnose(apart=apart):
                    self._report(self._evidence.diagnosed(apart))
                case orders.EndRanks(verdict=verdict):
                    self._verdict = verdict
                    assert self._controller.phase is Phase.ENDING

    def _request(self, server: int) -> None:
        self._ask(server, self._now_s)
        agent = self._agents[server]
        at_s = self._now_s + self._way_s()
        if agent.notes_s > at_s and at_s < agent.gone_s and (testimony := agent.testify(at_s)) is not None:
            self._post(testimony.sent_s + self._way_s(), "testimony", server, testimony.evidence)


def hold(history: History, event_log):
    """The verdict; None where nothing of the history calls for one."""
    return _Coordinator(history, event_log).run()


def is_right(history: History, verdict) -> bool:
    """Whether whom it names is to blame. Of the ranks of a lost server nobody can know more than that it was lost."""
    first = history.first
    if verdict.culprit is not None:
        likewise = [cause.rank for cause in history.causes if cause.kind == first.kind == "alike"]
        return verdict.culprit in {first.rank, *likewise}
    if verdict.server is not None:
        server = next(index for index, one in enumerate(history.servers) if one.server_id == verdict.server)
        return first.server == server
    return verdict.confidence.value != "certain"


@pytest.fixture(name="event_log")
def _event_log(tmp_path):
    event_log = EventLog(tmp_path / "events.jsonl", 0)
    yield event_log
    event_log.close(None)


SERIES = [
    pytest.param(COUNT, {}, COUNT / 2, id="all causes"),
    # Three or four causes each, most of them losses, a moment or some seconds apart.
    *(
        pytest.param(COUNT // 4, {"kinds": (beside, *LOSSES), "counts": (3, 4)}, COUNT / 20, id=f"losses and {beside}")
        for beside in ("own", "http", "alike", "stop")
    ),
]


@pytest.mark.parametrize(("count", "drawn", "certain"), SERIES)
def test_no_verdict_on_a_drawn_history_is_certain_and_wrong(event_log, count, drawn, certain):
    """Of all causes, most likely verdicts are right, too, although causes lie a moment apart in many histories."""
    counted, wrong = Counter(), []
    for seed in range(count):
        history = draw(seed, **drawn)
        if (verdict := hold(history, event_log)) is None:
            continue
        right = is_right(history, verdict)
        counted[verdict.confidence.value, right] += 1
        if verdict.confidence.value == "certain" and not right:
            wrong.append((seed, history.causes, verdict.culprit, verdict.server, verdict.reason))
    assert not wrong
    assert counted["certain", True] > certain
    assert drawn or counted["likely", False] < counted["likely", True] / 2
