"""What must be true after a schedule was played: the documented rules, applied to what ranks and the harness noted.

A rank notes that it is about to end, and the harness that it has struck. Between a note and its effect a busy machine
may let some time pass: causes closer to the first one than `RACE_S` may each have been the first. Time for which a
core stood still counts for nothing: whoever was to run there could not.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from schedules import Blow, Part, Schedule

RACE_S = 1.5
LATE_NS = 250_000_000  # a second Ctrl-C comes so long after the note of the first
AFTER_GRACE_S = 5.0  # for evidence, for the kernel, and for a busy machine
KILLED = 128 + signal.SIGKILL


@dataclass(frozen=True)
class Struck:
    blow: Blow
    time_ns: int
    attempt: int = 0  # of the rank that was hit


@dataclass
class Facts:
    schedule: Schedule
    status: int | None  # as in subprocess; None: it never ended
    started_ns: int = 0
    ended_ns: int = 0
    struck: list[Struck] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # what ranks noted
    events: list[dict[str, Any]] = field(default_factory=list)  # of events.jsonl
    report: dict[str, Any] | None = None
    logs: dict[int, str] = field(default_factory=dict)  # the end of each train.log
    left: list[str] = field(default_factory=list)  # processes, ports and files found when nothing may be left
    stalled_s: float = 0.0  # how long cores stood still meanwhile, all of them together

    @property
    def exit_code(self) -> int:
        """As a shell would report."""
        return 128 - (self.status or 0) if (self.status or 0) < 0 else self.status or 0

    @property
    def race_ns(self) -> float:
        return (RACE_S + self.stalled_s) * 1e9

    @property
    def final_attempt(self) -> int:
        begun = [record["attempt"] for record in self.records]
        return max([0, *begun, *(event["number"] for event in self.event("AttemptStarted"))])

    def hit(self, target: str, number: int) -> bool:
        return any((one.blow.target, one.blow.signal) == (target, number) for one in self.struck)

    def event(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == name]


@dataclass(frozen=True)
class Cause:
    """Something that ends a run, or an attempt, and the exit code that it stands for."""

    time_ns: int
    exit_code: int
    rank: int | None = None
    sure: bool = True  # False: it may never have come to pass


def complaints(facts: Facts) -> Iterator[str]:
    """Everything that is wrong, one sentence each."""
    yield from facts.left
    if facts.status is None:
        yield "the run never ended"
        return
    allowed = possible_codes(facts)
    if facts.exit_code not in allowed:
        yield f"exit code {facts.exit_code}, but only {sorted(allowed)} can be"
    yield from _too_slow(facts)
    yield from _wrong_restarts(facts)
    yield from _wrong_files(facts)
    yield from _lost_words(facts)
    yield from _wrong_culprit(facts)


def possible_codes(facts: Facts) -> set[int]:
    """Every exit code that the documented rules allow."""
    allowed = {cause.exit_code for cause in first_causes(facts)}
    if _all_ended_well(facts) and not any(failure.sure for failure in _failures(facts)):
        # Whoever asks a run to stop that ends in this moment may come too late.
        last_ns = max(record["time_ns"] for record in _acts(facts))
        if all(stop.time_ns > last_ns - facts.race_ns for stop in _stops(facts)):
            allowed.add(0)
    if facts.hit("head", signal.SIGKILL) or facts.hit("agent", signal.SIGKILL):
        allowed.add(KILLED)
    return allowed


def first_causes(facts: Facts) -> list[Cause]:
    """Those that may have been the first."""
    causes = _failures(facts) + _stops(facts)
    first_ns = min((cause.time_ns for cause in causes if cause.sure), default=None)
    return [cause for cause in causes if first_ns is None or cause.time_ns <= first_ns + facts.race_ns]


def _acts(facts: Facts) -> list[dict[str, Any]]:
    last = facts.final_attempt
    return [record for record in facts.records if record["what"] == "acts" and record["attempt"] == last]


def part_of(facts: Facts, record: dict[str, Any]) -> Part:
    attempts = facts.schedule.attempts
    return attempts[record["attempt"]][record["rank"]] if record["attempt"] < len(attempts) else Part("exit")


def _failures(facts: Facts) -> list[Cause]:
    own = [
        Cause(record["time_ns"], code, record["rank"], sure=not _stopped(facts, record["rank"]))
        for record in _acts(facts)
        if (code := part_of(facts, record).exit_code)
    ]
    killed = [
        Cause(one.time_ns, KILLED, one.blow.rank, sure=False)  # it may have ended in the same moment
        for one in facts.struck
        if one.blow.target == "rank" and one.blow.signal == signal.SIGKILL and one.attempt == facts.final_attempt
    ]
    return own + killed


def _stopped(facts: Facts, rank: int) -> bool:
    return any(
        (one.blow.target, one.blow.signal, one.blow.rank) == ("rank", signal.SIGSTOP, rank) for one in facts.struck
    )


def _stops(facts: Facts) -> list[Cause]:
    return [
        Cause(one.time_ns, 128 + one.blow.signal)
        for one in facts.struck
        if one.blow.target == "head" and one.blow.signal != signal.SIGKILL
    ]


def _all_ended_well(facts: Facts) -> bool:
    well = {record["rank"] for record in _acts(facts) if part_of(facts, record).exit_code == 0}
    return len(well) == facts.schedule.ranks


def _died_of_a_blow(facts: Facts) -> bool:
    """SIGKILL, or a signal that came when the run was over and the launcher about to exit: then it acts as anywhere."""
    number = facts.exit_code - 128
    over_ns = facts.events[-1]["time_ns"] - LATE_NS - facts.stalled_s * 1e9
    return facts.status == -signal.SIGKILL or any(
        (one.blow.target, one.blow.signal) == ("head", number) and one.time_ns > over_ns for one in facts.struck
    )


def _interfered(facts: Facts) -> bool:
    """Whether something else than a failing rank may have ended the run."""
    return any(one.blow.target in {"head", "agent"} for one in facts.struck)


def _too_slow(facts: Facts) -> Iterator[str]:
    """From the first cause (and from the killing of an agent: it leaves the rest to the head) to the end."""
    causes = [cause.time_ns for cause in _failures(facts) + _stops(facts) if cause.sure]
    killed = [one.time_ns for one in facts.struck if one.blow.target == "agent"]
    took_s = (facts.ended_ns - max(min(causes), *killed, 0)) / 1e9 if causes else 0.0
    if took_s > longest_s(facts.schedule) + facts.stalled_s:
        grace_s, stalled_s = facts.schedule.grace_s, facts.stalled_s
        yield f"the end took {took_s:.1f} s at a grace period of {grace_s} s, of which cores stood still {stalled_s:.1f} s"


def longest_s(schedule: Schedule) -> float:
    """Between what ends a run and its end."""
    return schedule.grace_s + AFTER_GRACE_S


def _wrong_restarts(facts: Facts) -> Iterator[str]:
    last = facts.final_attempt
    if last > facts.schedule.max_restarts:
        yield f"attempt {last}, but only {facts.schedule.max_restarts} restarts were allowed"
    due = last < facts.schedule.max_restarts and facts.exit_code != 0
    refused = last > 0 and facts.event("NotRestarting")  # the same failure again
    if due and not _interfered(facts) and not refused:
        yield f"attempt {last} failed, a restart was left, and nobody says why it was not used"
    for record in facts.records:
        if record["attempt"] < last and record["time_ns"] > _start_of(facts, record["attempt"] + 1):
            yield f"rank {record['rank']} of attempt {record['attempt']} still ran in the next attempt"


def _start_of(facts: Facts, attempt: int) -> int:
    return min((record["time_ns"] for record in facts.records if record["attempt"] == attempt), default=1 << 63)


def _wrong_files(facts: Facts) -> Iterator[str]:
    """report.json and events.jsonl, where a run came so far that there must be some."""
    if not facts.event("AgentStarted"):
        return
    if facts.report is None:
        yield "there is no report.json"
        return
    last = facts.events[-1]
    if last["event"] != "AgentEnded":
        yield f"the last event is {last['event']}, not AgentEnded"
    elif last["exit_code"] != facts.report["exit_code"]:
        yield f"report.json has exit code {facts.report['exit_code']}, the last event {last['exit_code']}"
    if facts.report["exit_code"] != facts.exit_code and not _died_of_a_blow(facts):
        yield f"report.json has exit code {facts.report['exit_code']}, the launcher {facts.exit_code}"


def _lost_words(facts: Facts) -> Iterator[str]:
    for record in facts.records:
        words = f"last words of attempt {record['attempt']}"
        if record["what"] == "acts" and words not in facts.logs.get(record["rank"], ""):
            yield f"train.log of rank {record['rank']} has lost its {words!r}"


def _wrong_culprit(facts: Facts) -> Iterator[str]:
    """Whom the report blames, where ranks alone decided."""
    verdict = facts.report["attempts"][-1].get("verdict") if facts.report and facts.report.get("attempts") else None
    if not verdict or _interfered(facts) or verdict["culprit"] is None:
        return
    suspects = {cause.rank for cause in first_causes(facts)}
    if verdict["culprit"] not in suspects:
        yield f"rank {verdict['culprit']} is blamed, but only {sorted(suspects, key=str)} can have been first"
