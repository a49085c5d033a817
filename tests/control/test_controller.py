"""Histories of runs: what happens, and what the controller orders, without a process, a file or a clock.

A file of histories is read line by line:

    = name                                      a history begins, with the words of `Setup` on the next line
    servers 2  restarts 1  by hand              (also: engine anew, limit 5, timeout 60, forward USR1, servers h1 h2;
                                                 elastic 4 mp 2: so many devices, divided evenly over the servers)
    2.5  evidence 0, verdict rank 1  >  collect 1     at 2.5 s these events happen, and then a Tick; the orders follow

Events: see `_EVENTS`; `verdict ...` is what every diagnosis is answered with from then on. Orders are written as `shown`
has them. A line without a time happens at the same moment as the one before.
"""

import re
import signal
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest

from launcher.control import events, orders
from launcher.control.controller import Phase, RunController
from launcher.control.events import Setup
from launcher.control.outcome import Restarts
from launcher.core import events as recorded
from launcher.core.errors import RefusedTableError, TlaunchError, UnreadableError
from launcher.core.records import Elastic, Layout, Supervision
from launcher.core.verdict import Confidence, Failure, Role, Verdict

FOLDER = Path(__file__).parent / "histories"
WALL_S = 1_700_000_000.0  # the wall clock when a history's own time is 0


def _signal(name):
    return signal.Signals[f"SIG{name}"]


class Play:
    """One history, and the controller that it is played to."""

    def __init__(self, setup):
        self.controller = RunController(_setup(setup))
        self.now_s = 0.0
        self.given = []  # orders since the last line
        self.exits = {}
        self.verdict = ""
        self.quiet = ()

    def line(self, line):
        told, _, expected = line.partition(">")
        told = told.strip()
        if moment := re.match(r"(\d+(?:\.\d+)?)(?:\s+|$)", told):
            self.now_s, told = float(moment[1]), told[moment.end() :]
        for event in filter(None, map(str.strip, told.split(","))):
            self._happen(event)
        self._take(events.Tick(self.quiet))
        shown_orders, self.given = self.given, []
        return list(_shown_all(shown_orders)), [each.strip() for each in expected.split(",") if each.strip()]

    def _happen(self, text):
        if text.startswith("verdict "):
            self.verdict = text.removeprefix("verdict ")
        elif text.startswith("quiet"):
            self.quiet = tuple(map(int, text.split()[1:]))
        else:
            event = _event(text)
            if isinstance(event, recorded.RankEnded):
                self.exits[event.global_rank] = event.status
            if isinstance(event, events.EvidenceReport | events.AttemptEnded):
                event = replace(event, attempt=self.controller.attempt)
            self._take(event)

    def _take(self, event):
        for order in self.controller.take(event, self.now_s, WALL_S + self.now_s):
            self.given.append(order)
            if isinstance(order, orders.BeginAttempt):
                self.exits = {}
            if isinstance(order, orders.Diagnose):
                self._take(self._diagnosed(order.apart))

    def _diagnosed(self, apart):
        """`rank 1`, `server 10.0.0.2`, `nobody`; and perhaps: likely, unsure, hung, step 5, as NAME, asks reach, names 0-1."""
        words = self.verdict
        assert words, "a history that is diagnosed has a verdict"

        def word(pattern, kind=str):
            found = re.search(pattern, words)
            return kind(found[1]) if found else None

        ends = {rank: status for rank, status in self.exits.items() if status}
        verdict = Verdict(
            word(r"^rank (\d+)", int),
            next((each for each in Confidence if each.value in words), Confidence.CERTAIN),
            "as told",
            tuple(Failure(rank, Role.CAUSE, "failed", "as told", status=status) for rank, status in ends.items()),
            server=word(r"^server (\S+)"),
            signature=word(r"as (?!k)(\S+)"),
            apart=tuple(("one", "other") for _ in apart),
        )
        named = tuple((int(one), int(other)) for one, other in re.findall(r"names (\d+)-(\d+)", words))
        cause = recorded.Cause.HUNG if "hung" in words else recorded.Cause.FAILED
        return events.Diagnosed(verdict, cause, word(r"step (\d+)", int), "asks reach" in words, named)


def _setup(words):
    def number(name, otherwise):
        found = re.search(rf"\b{name} ([\d.]+)", words)
        return float(found[1]) if found else otherwise

    count, killed_at_s = int(number("servers", 1)), number("killed at", None)
    devices, mp = int(number("elastic", 0)), int(number("mp", 1))
    ranks = int(number("ranks", devices))
    elastic = Elastic(
        servers=tuple(device * count // devices for device in range(devices)),
        layouts=tuple(None if have < mp else Layout(min(have, ranks) // mp, mp) for have in range(devices + 1)),
    )
    supervision = Supervision(
        grace_s=15.0,
        max_restarts=int(number("restarts", 0)),
        time_limit_s=number("timeout", None),
        forward_signals=tuple(_signal(name) for name in re.findall(r"forward (\w+)", words)),
        killed_at_s=None if killed_at_s is None else WALL_S + killed_at_s,
        elastic=elastic if devices else None,
    )
    return Setup(
        server_ids=tuple(f"10.0.0.{index + 1}" for index in range(count)),
        supervision=supervision,
        brings_all="by hand" not in words,
        engine_anew="engine anew" in words,
        evidence_limit_s=number("limit", 5.0 if count > 1 else 0.0),
        look_again_s=1.0,
    )


_ERRORS = {
    "missing": TlaunchError("server 10.0.0.2 did not come"),
    "another table": RefusedTableError("another table"),
    "two places": RefusedTableError("h2 and h3 both say that they are server 10.0.0.2"),
    "full disk": UnreadableError("no space left on device"),
}
_ENGINES = {
    "": None,
    "by itself": events.EngineExited(),
    "cancelled": events.EngineExited(cancelled="slurmstepd: CANCELLED"),
    "killed": events.EngineExited(killed=Verdict(None, Confidence.CERTAIN, "mpirun itself was killed")),
    "gave up 10.0.0.2": events.EngineExited(
        gave_up=Verdict(None, Confidence.LIKELY, "mpirun gave the run up", server="10.0.0.2")
    ),
    "gave up": events.EngineExited(gave_up=Verdict(None, Confidence.LIKELY, "mpirun gave the run up")),
}
_SIGNALS = "(INT|TERM|HUP|QUIT|TSTP|CONT|USR1|USR2)"
_EVENTS = {
    r"ready (\d+)": events.ServersReady,
    r"ready (\d+) and (\d+)": lambda one, other: events.ServersReady(one, ((0, one), (1, other))),
    r"joined (\d+) port (\d+)": events.ServerJoined,
    r"cannot begin: (.*)": lambda why: events.CannotBegin(_ERRORS[why]),
    r"rank (\d+) ends (-?\d+)": lambda rank, status: recorded.RankEnded(rank, None, status),
    r"failure at (\d+)": events.RankFailed,
    r"evidence (\d+)": lambda server: events.EvidenceReport(server, 0, port=40000 + server),
    r"nonsense (\d+)": events.RankFailed,
    r"probe (\d+) of (\d+) reaches all": lambda number, server: events.ProbeResult(server, number, ()),
    r"probe (\d+) of (\d+) misses (\d+)": lambda number, server, other: events.ProbeResult(
        server, number, ((other, "no answer"),)
    ),
    r"leftovers at (\d+)": events.EndingLeftovers,
    r"over (\d+)": lambda server: events.AttemptEnded(server, 0),
    r"over (\d+) port (\d+)": lambda server, port: events.AttemptEnded(server, 0, master_port=port),
    r"over (\d+) unkillable": lambda server: events.AttemptEnded(server, 0, left=True),
    r"lost (\d+)": lambda server: events.ServerLost(server, "gone"),
    r"lost (\d+) finished": lambda server: events.ServerLost(server, "gone", finished=True),
    r"lost (\d+) as we stood still": lambda server: events.ServerLost(server, "gone", is_own_fault=True),
    r"gone (\d+)": events.ServerGone,
    _SIGNALS: lambda name: events.SignalReceived(_signal(name)),
    _SIGNALS + r" at (\d+)": lambda name, server: events.SignalReceived(_signal(name), server),
    r"launcher lost": lambda: events.EndWanted(recorded.Cause.HEAD_LOST),
    r"all left(?:; engine )?(.*)": lambda how: events.ServersLeft(_ENGINES[how]),
}


def _event(text):
    if text.startswith("exclude"):
        return events.ExclusionsChanged(frozenset(map(int, text.split()[1:])))
    for pattern, make in _EVENTS.items():
        if match := re.fullmatch(pattern, text):
            return make(*(int(word) if re.fullmatch(r"-?\d+", word) else word for word in match.groups()))
    raise AssertionError(f"no such event: {text}")


def _shown_all(given):
    """Yield orders as histories write them: those to collect evidence, one for each server, as one."""
    for kind, group in groupby(given, type):
        if kind is orders.CollectEvidence:
            yield f"collect {' '.join(str(order.server) for order in group)}"
        else:
            yield from map(shown, group)


def shown(order):
    """Return an order, or the event that it records, as histories write it."""
    return _SHOWN[type(order)](order)


def _name(number):
    return signal.Signals(number).name.removeprefix("SIG")


def _probe(order):
    tried = " ".join(f"{target.server}:{'/'.join(map(str, target.ports))}" for target in order.targets)
    return f"probe {order.number} by {order.server} of {tried or 'none'}"


def _begin(order):
    devices = "" if order.allotment is None else f" on {' '.join(map(str, order.allotment.devices))}"
    return f"begin {order.number} at {order.master_port}{devices}"


def _changed(event):
    parts = (("without", event.left_out), ("with", event.taken_back))
    return "; ".join(f"{word} {' '.join(map(str, devices))}" for word, devices in parts if devices)


def _judged(event):
    who = f"server {event.verdict.server}" if event.verdict.server else "nobody"
    return f"judged {who if event.verdict.culprit is None else f'rank {event.verdict.culprit}'}"


def _stopping(event):
    by = f" by {event.asked_by}" if event.signal else ""
    grace = "" if event.grace_s == 15.0 else f" within {event.grace_s:g}"
    return f"stopping {event.cause.value}{by}{grace}{' to repeat' if event.restarts else ''}"


_SHOWN = {
    orders.Record: lambda order: shown(order.event),
    orders.BeginAttempt: _begin,
    orders.Diagnose: lambda order: "diagnose" + "".join(f" {one.pair[0]}|{one.pair[1]}" for one in order.apart),
    orders.ProbeReach: _probe,
    orders.EndRanks: lambda order: "end ranks to repeat" if order.restarts else "end ranks",
    orders.CancelRestart: lambda _: "keep nothing",
    orders.ForwardSignal: lambda order: f"send {_name(order.number)}",
    orders.Finish: lambda order: f"finish {order.cause.value} {order.exit_code}",
    orders.GatherServers: lambda _: "gather",
    orders.Close: lambda _: "close",
    recorded.Judged: _judged,
    recorded.Stopping: _stopping,
    recorded.NotRestarting: lambda event: f"no restart: {event.reason}",
    recorded.NotBegun: lambda event: f"not begun: {event.message}",
    recorded.Trouble: lambda event: f"trouble: {event.message}",
    recorded.DevicesChanged: _changed,
    recorded.Joined: lambda event: f"joined {event.server} after {event.pause_s:g} s",
    recorded.Paused: lambda _: "paused",
    recorded.Continued: lambda _: "continued",
    recorded.Forwarded: lambda event: f"forwarded {_name(event.signal)}",
}


def _histories():
    for path in sorted(FOLDER.glob("*.txt")):
        for text in path.read_text().split("\n= ")[1:]:
            name, setup, *lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
            yield pytest.param(setup, lines, id=f"{path.stem}: {name}")


@pytest.mark.parametrize(("setup", "lines"), list(_histories()))
def test_a_history_has_its_orders(setup, lines):
    play = Play(setup)
    for line in lines:
        given, expected = play.line(line)
        assert given == expected, line
    if play.controller.phase is Phase.OVER:
        assert play.controller.outcome.finish is not None


# Failures by signature and highest step. Decided: True, or False without a reason, or the signature in the refusal.
@pytest.mark.parametrize(("allowed", "failures", "decided"), [
    (2, [("a", 0), ("a", 1), ("b", 2)], [True, True, False]),  # as many as allowed
    (9, [("a", None), ("a", None)], [True, "a"]),  # the same failure without progress
    (9, [("a", 3), ("a", 4), ("a", 4)], [True, True, "a"]),  # only the steps of earlier attempts
    (9, [("a", 9), ("b", 2), ("b", 3)], [True, True, "b"]),  # steps compare with all attempts
    (9, [("a", None), ("a", 0), ("a", None)], [True, True, "a"]),  # the first step is progress
    (9, [("a", None), ("a", 1), ("b", None), ("a", None), ("b", None)], [True] * 5),  # another failure between
    (3, [(None, None)] * 3, [True] * 3),  # killed from outside: no signature
    (0, [("a", None)] * 2, [False] * 2),  # no restarts need no reason
])  # fmt: skip
def test_another_attempt_is_worth_it(allowed, failures, decided):
    restarts = Restarts(allowed)
    for (signature, step), expected in zip(failures, decided, strict=True):
        verdict = Verdict(0, Confidence.CERTAIN, "because", signature=signature)
        assert restarts.decide(verdict, step) == (expected is True)
        assert (restarts.refusal is not None) == isinstance(expected, str)
        if restarts.refusal:
            assert f"({expected})" in restarts.refusal
