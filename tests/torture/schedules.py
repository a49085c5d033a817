"""Random schedules: what every rank does in every attempt, and what happens to the run from outside. From a seed alone."""

from __future__ import annotations

import random
import signal
from dataclasses import dataclass

EXIT_CODES = (2, 5, 7, 41, 200, 255)
DELAYS_S = (0.0, 0.0, 0.05, 0.2, 0.4, 0.8)
OUTPUT_LINES = 40_000  # 4 MB
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class Part:
    """What one rank does in one attempt."""

    end: str  # exit, os._exit, raise, signal, stop, hang
    code: int = 0  # of exit and os._exit; the number of a signal
    after_s: float = 0.0
    ignores_term: bool = False
    grandchild: str | None = None  # "double fork" or "new session"
    children: int = 0
    output_lines: int = 0

    @property
    def exit_code(self) -> int | None:
        """What a shell would report; None for one that does not end by itself."""
        if self.end in {"hang", "stop"}:
            return None
        if self.end == "signal":
            return 128 + self.code
        return 1 if self.end == "raise" else self.code


@dataclass(frozen=True)
class Blow:
    """What happens from outside, `after_s` seconds after something that is waited for."""

    target: str  # head, agent, preload, rank
    signal: int
    after: str  # launch: the command's start; agent: its first event; ready: every rank of the first attempt runs
    after_s: float
    rank: int = 0
    again_after_s: float | None = None  # the same once more: a second Ctrl-C


@dataclass(frozen=True)
class Schedule:
    seed: int
    attempts: tuple[tuple[Part, ...], ...]
    blows: tuple[Blow, ...]
    max_restarts: int
    preload: bool
    grace_s: float

    @property
    def ranks(self) -> int:
        return len(self.attempts[0])


def make_schedule(seed: int) -> Schedule:
    """The same for the same seed, on every machine."""
    rng = random.Random(seed)
    ranks = rng.randint(2, 6)
    max_restarts = rng.choice((0, 0, 0, 1, 2))
    attempts = tuple(_attempt(rng, ranks, number) for number in range(max_restarts + 1))
    preload = rng.random() < 0.6
    blows = _blows(rng, ranks, preload=preload)
    if any(map(_may_hang, attempts)) or any(blow.signal == signal.SIGSTOP for blow in blows):
        blows = (*blows, _ending_blow(rng, after="ready", after_s=rng.uniform(1.0, 2.0)))
    return Schedule(seed, attempts, blows, max_restarts, preload, rng.choice((0.3, 0.5, 1.0)))


def _attempt(rng: random.Random, ranks: int, number: int) -> tuple[Part, ...]:
    """Later attempts are kinder, so that some runs recover."""
    bad = rng.choice((0.0, 0.2, 0.6)) if number == 0 else rng.choice((0.0, 0.0, 0.3))
    hanging = rng.choice((0.0, 0.2, 0.6))
    return tuple(_part(rng, bad, hanging) for _ in range(ranks))


def _part(rng: random.Random, bad: float, hanging: float) -> Part:
    chance = rng.random()
    if chance < bad:
        end, code = _bad_end(rng)
    elif chance < bad + (1 - bad) * hanging:
        end, code = rng.choice(("hang", "hang", "stop")), 0
    else:
        end, code = "exit", 0
    return Part(
        end, code,
        after_s=rng.choice(DELAYS_S),
        ignores_term=rng.random() < 0.3,
        grandchild=rng.choice((None, None, None, "double fork", "new session")),
        children=20 if rng.random() < 0.07 else 0,
        output_lines=OUTPUT_LINES if rng.random() < 0.1 else 0,
    )  # fmt: skip


def _bad_end(rng: random.Random) -> tuple[str, int]:
    end = rng.choice(("exit", "exit", "os._exit", "raise", "raise", "signal"))
    if end == "signal":
        return end, rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV))
    return end, 0 if end == "raise" else rng.choice(EXIT_CODES)


def _may_hang(attempt: tuple[Part, ...]) -> bool:
    codes = [part.exit_code for part in attempt]
    return None in codes and not any(codes)


def _blows(rng: random.Random, ranks: int, *, preload: bool) -> tuple[Blow, ...]:
    """Never both the head and the agent: what ranks had put into other sessions may then survive, as documented."""
    blows = [_blow(rng, ranks, preload=preload) for _ in range(rng.choice((0, 0, 1, 1, 1, 2)))]
    if {"head", "agent"} <= {blow.target for blow in blows if blow.signal == signal.SIGKILL}:
        blows = [blow for blow in blows if blow.target != "agent"]
    return tuple(blows)


def _blow(rng: random.Random, ranks: int, *, preload: bool) -> Blow:
    target = rng.choice(("head", "head", "agent", "rank", "rank", "stopped rank", "signal", "signal", "preload"))
    if target == "preload" and not preload:
        target = "rank"
    after = rng.choice(("agent", "ready", "ready"))
    after_s = rng.choice((0.0, 0.02, 0.1, 0.3, 0.7))
    if target == "signal":
        return _ending_blow(rng, after=after, after_s=after_s)
    if target == "head" and rng.random() < 0.3:
        return Blow("head", signal.SIGKILL, "launch", rng.uniform(0, 0.6))
    if target == "stopped rank":
        return Blow("rank", signal.SIGSTOP, after, after_s, rank=rng.randrange(ranks))
    return Blow(target, signal.SIGKILL, after, after_s, rank=rng.randrange(ranks))


def _ending_blow(rng: random.Random, *, after: str, after_s: float) -> Blow:
    number = rng.choice(ENDING_SIGNALS)
    again_after_s = 0.4 if number == signal.SIGINT and rng.random() < 0.5 else None
    return Blow("head", number, after, after_s, again_after_s=again_after_s)
