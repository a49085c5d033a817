"""A thousand attempts that fail, over servers that are lost, frozen or parted: no verdict is certain and wrong.

Histories are drawn by lot: what truly happened, and what the coordinator hears of it. The truth is a list of causes
with their true times. From it follow the failures of other ranks, what each agent notices of all that (late where it
was held up, not at all once it is lost), what it testifies and when, by a clock of its own, and what comes to the
coordinator. That is played through the real controller and evidence, as a coordinator does. Not drawn is what one
server cannot tell either: a cause among what follows from a rank that is missed, and one right after a doubtful one
beside it.
"""

import heapq
import itertools
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from launcher.cluster.agent_connection import Clock
from launcher.cluster.server_evidence import ServerEvidence
from launcher.control import events, orders
from launcher.control.controller import Phase, RunController
from launcher.control.events import Setup
from launcher.core.codec import encode
from launcher.supervise.diagnosis.evidence import RankEvidence
from launcher.supervise.diagnosis.failure_files import FailureRecord
from launcher.supervise.diagnosis.servers import Evidence
from launcher.supervise.diagnosis.stack_parser import RankStack
from tests.servers import servers

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
    """Something that nothing else caused, and that is enough for the attempt to fail."""

    kind: str
    time_s: float
    rank: int | None = None
    server: int | None = None  # of the rank, or the one that is lost
    effect_s: float = NEVER  # when others first suffer from it; of what does not end a rank that is its time


@dataclass
class Rank:
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

    def fail(self, at_s, ends_s, status=1, failure=None, tail="", *, open_mpi=False):
        self.fails_s, self.ends_s, self.status = at_s, ends_s, status
        self.failure, self.tail, self.open_mpi = failure, tail, open_mpi


class History:
    """Causes and their consequences, in the order of their times, and when agents and the coordinator were held up."""

    def __init__(self, seed, kinds=KINDS, counts=COUNTS):
        self.seed, self._kinds = seed, kinds
        self._source = source = random.Random(seed)
        count, size = source.randint(2, 4), source.randint(1, 3)
        self.servers = servers(*(f"10.0.0.{index + 1}" for index in range(count)), each=size)
        self.ranks = [Rank(number, number // size) for number in range(count * size)]
        self.causes = []
        self.lost = {}  # by server: when, and how
        self.hang_timeout_s = source.choice([None, 3.0])
        self.offsets = [source.uniform(-60, 60) for _ in self.servers]
        self.errors = [source.choice([0.0002, 0.002, 0.02, 0.2]) for _ in self.servers]
        self.frozen = {}  # agents, from when to when
        for _ in range(source.choice([0, 0, 1])):
            begin = 10 + source.uniform(-3, 3)
            self.frozen[source.randrange(count)] = (begin, begin + source.uniform(0.3, SILENCE_S - 1.5))
        self.away = (NEVER, NEVER)  # the coordinator itself
        if source.random() < 0.1:
            begin = 10 + source.uniform(-2, 2)
            self.away = (begin, begin + source.uniform(0.3, 4))
        if source.random() < 0.4:
            source.choice(self.ranks).busy = True
        self._act(source.choice(counts))

    @property
    def first(self):
        return min(self.causes, key=lambda cause: cause.effect_s)

    @property
    def stalled_s(self):
        return min((cause.time_s for cause in self.causes if cause.kind not in OWN_KINDS), default=NEVER)

    def gone_s(self, server):
        return self.lost.get(server, (NEVER, ""))[0]

    def _act(self, count):
        source, at_s = self._source, 10.0
        for number in range(count):
            if number:
                at_s += source.choice([0.0005, 0.01, 0.1, 0.5, 1.5, 4]) * source.uniform(0.5, 1.5)
            # What follows from a rank that is missed is no rank's fault: no other cause may hide among it.
            if any(cause.effect_s <= at_s and cause.kind in MISSED for cause in self.causes):
                return
            kind = source.choice(self._kinds)
            # Of two that are missed neither is more to blame.
            if kind not in MISSED or all(cause.kind not in MISSED for cause in self.causes):
                self._cause(kind, at_s)

    def _cause(self, kind, at_s):
        source = self._source
        if kind == "partition":
            self._miss(at_s, None, kind, None)
        elif kind in LOSSES:
            server = source.randrange(len(self.servers))
            if server not in self.lost:
                self._lose(server, kind, at_s)
        elif living := [rank for rank in self.ranks if rank.fails_s > at_s and rank.absent is None]:
            rank = source.choice(living)
            if kind not in OWN_KINDS:
                self._miss(at_s, rank, kind, rank.server)
            # Of one server, an end after it is taken for what led to the lost connection: see root_cause.py.
            elif not any(
                cause.kind == "http" and cause.server == rank.server and at_s - cause.time_s < LATE_S
                for cause in self.causes
            ):
                self._fail(rank, kind, at_s)
                self._close([rank], at_s)

    def _fail(self, rank, kind, at_s):
        source = self._source
        ends_s = at_s + source.choice([0.02, 0.2, 2.5]) * source.uniform(0.5, 1.5)
        if kind == "http":
            rank.fail(at_s, ends_s, 1, ("ConnectionResetError", "[Errno 104] Connection reset by peer"))
        elif kind == "alike":
            rank.fail(at_s, ends_s, 1, ("ValueError", "alike"))
        elif source.random() < 0.6:
            rank.fail(at_s, ends_s, 1, (f"Error{rank.number}", "of its own"))
        else:
            rank.fail(at_s, at_s, source.choice([-11, -9, -6, 3 + rank.number]))
        self.causes.append(Cause(kind, at_s, rank.number, rank.server, at_s))

    def _close(self, dead, at_s):
        """Others lose their connections to ranks that end: most fail of it, in one way or another."""
        source = self._source
        for rank in self.ranks:
            if rank in dead or rank.absent or rank.busy or source.random() < 0.3:
                continue
            fails_s, how = at_s + source.uniform(0.0003, 0.03), source.random()
            if fails_s >= min(rank.fails_s, self.gone_s(rank.server)):
                continue
            ends_s = fails_s + source.uniform(0.005, 0.3)
            if how < 0.6:
                rank.fail(fails_s, ends_s, 1, ("RuntimeError", CLOSED))
            elif how < 0.75:
                rank.fail(fails_s, fails_s, 14, open_mpi=True)
            elif how < 0.9:
                rank.fail(fails_s, fails_s, -6, tail=CLOSED)
            else:
                rank.fail(fails_s, ends_s, 1, ("ProtocolError", STRANGE))

    def _miss(self, at_s, rank, kind, server):
        """Others wait for it until they, or the agents that watch over them, lose patience."""
        source = self._source
        if rank is not None:
            rank.absent = (at_s, STOPPED if kind == "stop" else SLEEPING)
        effect_s = NEVER if self.hang_timeout_s is None else at_s + self.hang_timeout_s
        waits = [one for one in self.ranks if one is not rank and not one.busy and one.fails_s == NEVER]
        if waits and (self.hang_timeout_s is None or source.random() < 0.5):
            for one in source.sample(waits, source.randint(1, len(waits))):
                timed_out_s = at_s + 2 + source.uniform(0, 0.3)
                if timed_out_s < min(one.fails_s, self.gone_s(one.server)):
                    one.fail(timed_out_s, timed_out_s + source.uniform(0.005, 0.3), 1, ("RuntimeError", TIMED_OUT))
                    effect_s = min(effect_s, timed_out_s)
        self.causes.append(Cause(kind, at_s, None if rank is None else rank.number, server, effect_s))

    def _lose(self, server, kind, at_s):
        self.lost[server] = (at_s, kind)
        self.causes.append(Cause(kind, at_s, None, server, at_s))
        if kind == "closed":
            dead = [rank for rank in self.ranks if rank.server == server]
            self._close(dead, at_s + self._source.uniform(0.0, 0.05))


class _Agent:
    """What the agent of one server notices, and testifies when it is asked or has noticed a failure itself."""

    def __init__(self, history, server, source):
        self._history, self._server, self._source = history, server, source
        self._ranks = [rank for rank in history.ranks if rank.server == server]
        slow_s = source.choice([0.0, 0.0, 0.0, 0.8])  # a busy machine
        self.gone_s = history.gone_s(server)
        self.noticed = {
            rank.number: self.wakes(rank.ends_s) + source.uniform(0.0005, 0.005) + source.random() * slow_s
            for rank in self._ranks
        }
        self._takes_s = source.choice([0.1, 0.15, 0.4, 1.5])

    def wakes(self, at_s):
        begin, end = self._history.frozen.get(self._server, (NEVER, NEVER))
        return end if begin <= at_s < end else at_s

    def notes_s(self):
        """Return when it notices by itself that something is wrong."""
        hangs_s = NEVER
        if (timeout_s := self._history.hang_timeout_s) is not None:
            hangs_s = self.wakes(self._history.stalled_s + timeout_s + self._source.uniform(0, 1))
        return min([hangs_s, *self.noticed.values()])

    def testify(self, asked_s):
        """Return when it sends its testimony, and that; None if it is lost before."""
        sent_s = self.wakes(self.wakes(asked_s) + self._takes_s)
        if sent_s >= self.gone_s:
            return None
        for rank in self._ranks:  # an agent that asks living ranks where they are finds out which have ended
            looked_s = max(self.wakes(rank.ends_s), self.wakes(asked_s)) + 0.005
            self.noticed[rank.number] = min(self.noticed[rank.number], looked_s)
        ended = [rank for rank in self._ranks if self.noticed[rank.number] < sent_s]
        ended.sort(key=lambda rank: (self.noticed[rank.number], rank.ends_s))
        known = self._source.random() < 0.8 or len(ended) == 1
        evidence = [self._of_ended(rank, place, known) for place, rank in enumerate(ended)]
        evidence += [self._of_living(rank, sent_s) for rank in self._ranks if rank not in ended]
        hangs_s = self._history.stalled_s + (self._history.hang_timeout_s or NEVER)
        hung = hangs_s < sent_s and all(rank.ends_s > sent_s for rank in self._ranks)
        return sent_s, Evidence(tuple(evidence), tuple(rank.number for rank in self._ranks) if hung else ())

    def _local_ns(self, true_s):
        return int((START_S + true_s + self._history.offsets[self._server]) * 1e9)

    def _record(self, rank):
        if rank.failure is None:
            return None
        return FailureRecord(self._local_ns(rank.fails_s), 1, "exception", *rank.failure, "a.py:1 in f", "")

    def _of_ended(self, rank, place, known):
        frozen_s, thawed_s = self._history.frozen.get(self._server, (0.0, 0.0))
        late_s = max(LATE_S, thawed_s - frozen_s + 0.5) if frozen_s <= rank.ends_s < thawed_s else LATE_S
        return RankEvidence(
            rank.number, rank.status, self._local_ns(self.noticed[rank.number]), place, order_known=known,
            late_s=late_s, failure=self._record(rank), log_tail=rank.tail, open_mpi=rank.open_mpi,
        )  # fmt: skip

    def _of_living(self, rank, now_s):
        stack = BUSY if rank.busy else WAITING
        if rank.absent is not None and rank.absent[0] < now_s:
            stack = rank.absent[1]
        failure = self._record(rank) if rank.fails_s < now_s else None
        return RankEvidence(rank.number, None, None, None, failure=failure, stack=stack)


class _Coordinator:
    """Drives the controller through a history: what comes when, which server it asks or loses, when it decides."""

    def __init__(self, history, event_log):
        self._source = random.Random(history.seed + 1)
        self._history = history
        self._agents = [_Agent(history, index, self._source) for index in range(len(history.servers))]
        self._now_s = 4.0
        self._evidence = ServerEvidence(history.servers, event_log, history.hang_timeout_s, self._now_ns)
        ids = tuple(server.server_id for server in history.servers)
        self._controller = RunController(Setup(ids, evidence_limit_s=INQUEST_S, look_again_s=BEAT_S))
        self._verdict = None
        self._queue = []
        self._places = itertools.count()
        self._asked = [[] for _ in history.servers]  # when each question was asked, and when the answer to it comes
        self._answers = [0 for _ in history.servers]  # that have come
        self._failed = []

    def _now_ns(self):
        return int((START_S + self._now_s) * 1e9)

    def _post(self, at_s, act, *arguments):
        begin, end = self._history.away
        heapq.heappush(self._queue, (end if begin <= at_s < end else at_s, next(self._places), act, arguments))

    def _way_s(self):
        return self._source.uniform(0.0001, 0.003)

    def run(self):
        """Return the verdict; None where nothing of the history calls for one."""
        self._report(events.ServersReady(4000))
        for index, agent in enumerate(self._agents):
            self._ask(index, 4.5 - self._source.random())
            for rank, at_s in agent.noticed.copy().items():
                if at_s < agent.gone_s:
                    self._post(at_s + self._way_s(), self._failed.append, rank)
            if (testimony := agent.testify(agent.notes_s())) is not None and agent.notes_s() < NEVER:
                self._post(testimony[0] + self._way_s(), self._take, index, testimony[1])
            if self._history.lost.get(index, (NEVER, ""))[1] == "closed":
                self._post(agent.gone_s + self._way_s(), self._lose, index, "the connection was closed")
        for tick in range(300):
            self._post(5.0 + tick * 0.1, self._tick)
        while self._queue and self._verdict is None:
            self._now_s, _, act, arguments = heapq.heappop(self._queue)
            act(*arguments)
            silent = [
                index for index in range(len(self._agents)) if self._now_s - self._answered(index)[0] > 2 * BEAT_S
            ]
            self._report(events.Tick(silent))
        return self._verdict

    def _ask(self, server, at_s):
        agent = self._agents[server]
        answered_s = agent.wakes(at_s + 0.001)
        self._asked[server].append((at_s, answered_s + 0.002 if answered_s < agent.gone_s else NEVER))

    def _answered(self, server):
        """Return when the last question was asked that has been answered by now, and the first after that."""
        asked, count = self._asked[server], self._answers[server]
        while count < len(asked) and asked[count][1] <= self._now_s:
            count += 1
        self._answers[server] = count
        return asked[count - 1][0], asked[count][0] if count < len(asked) else None

    def _take(self, server, evidence):
        if server in self._evidence.lost:
            return
        clock, error_s = Clock(), self._history.errors[server]
        wrong_s = self._source.uniform(-error_s, error_s)
        offset_s = self._history.offsets[server]
        clock.take(self._now_ns() - int((error_s - offset_s - wrong_s) * 1e9), int(2 * error_s * 1e9), self._now_ns())
        report = events.EvidenceReport(server, self._controller.attempt, encode(evidence), 40000)
        assert self._evidence.take(report, clock)
        self._report(report)

    def _tick(self):
        back_s = self._history.away[1]
        for index, asked in enumerate(self._asked):
            if self._now_s - asked[-1][0] >= BEAT_S:
                self._ask(index, self._now_s)
            heard_s = min(self._now_s, max(self._answered(index)[0], back_s if self._now_s >= back_s else 0.0))
            if self._now_s - heard_s > SILENCE_S:
                self._lose(index, "nothing was heard from it for 5 s", silent=True)

    def _lose(self, server, why, *, silent=False):
        if server in self._evidence.lost:
            return
        since_s, unanswered_s = self._answered(server)
        probably_s = unanswered_s if silent and unanswered_s is not None else self._now_s
        self._evidence.lose(
            server, why, since_ns=int((START_S + since_s) * 1e9), probably_ns=int((START_S + probably_s) * 1e9),
            failed=list(self._failed),
        )  # fmt: skip
        self._report(events.ServerGone(server))
        self._report(events.ServerLost(server, why))

    def _probe_reach(self, order):
        parted = any(cause.kind == "partition" for cause in self._history.causes)
        to_try = [target.server for target in order.targets]
        unreached = [(to, "no answer") for to in to_try if parted and {order.server, to} == {0, 1}]
        self._report(events.ProbeResult(order.server, order.number, tuple(unreached)))

    def _report(self, event):
        for order in self._controller.take(event, self._now_s, START_S + self._now_s):
            match order:
                case orders.CollectEvidence(server=server):
                    self._request(server)
                case orders.ProbeReach():
                    self._post(self._now_s + 2 * self._way_s(), self._probe_reach, order)
                case orders.Diagnose(apart=apart):
                    self._report(self._evidence.diagnosed(apart))
                case orders.EndRanks(verdict=verdict):
                    self._verdict = verdict
                    assert self._controller.phase is Phase.ENDING

    def _request(self, server):
        self._ask(server, self._now_s)
        agent, at_s = self._agents[server], self._now_s + self._way_s()
        if agent.notes_s() > at_s and at_s < agent.gone_s and (testimony := agent.testify(at_s)) is not None:
            self._post(testimony[0] + self._way_s(), self._take, server, testimony[1])


def is_right(history, verdict):
    """Return whether what it names is to blame. Of the ranks of a lost server only the loss can be known."""
    first = history.first
    if verdict.culprit is not None:
        likewise = [cause.rank for cause in history.causes if cause.kind == first.kind == "alike"]
        return verdict.culprit in {first.rank, *likewise}
    if verdict.server is not None:
        server = next(index for index, one in enumerate(history.servers) if one.server_id == verdict.server)
        return first.server == server
    return verdict.confidence.value != "certain"


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
        history = History(seed, **drawn)
        if (verdict := _Coordinator(history, event_log).run()) is None:
            continue
        right = is_right(history, verdict)
        counted[verdict.confidence.value, right] += 1
        if verdict.confidence.value == "certain" and not right:
            wrong.append((seed, history.causes, verdict.culprit, verdict.server, verdict.reason))
    assert not wrong
    assert counted["certain", True] > certain
    assert drawn or counted["likely", False] < counted["likely", True] / 2
