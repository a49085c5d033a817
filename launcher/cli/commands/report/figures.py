"""What a report says of one run, in numbers: the same for the terminal, for JSON and for the page."""

from __future__ import annotations

import json
import math
import shlex
import statistics
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import chain, groupby, pairwise
from typing import Any

from launcher.cli.commands.report.scales import Point
from launcher.cli.text.run_text import culprit, describe, shown_name
from launcher.core import env
from launcher.core.frozen import frozen
from launcher.core.run_dir import RunDir
from launcher.runs.metrics import Metrics, StepMetrics, Validation, read_metrics
from launcher.runs.progress import State
from launcher.runs.status import RunState, look
from launcher.runs.timeline import Timeline, timeline

LARGEST = 1e300  # beyond it a difference of two numbers is none
OF_TLAUNCH = "TLAUNCH_"
# What else tlaunch sets for every rank, and what differs between any two runs.
OF_EVERY_RUN = frozenset({
    env.DEVICE_ID, env.RANK_ID, env.RANK_SIZE, env.RANK_TABLE_FILE, env.RANK, env.LOCAL_RANK, env.WORLD_SIZE,
    env.LOCAL_WORLD_SIZE, env.GROUP_RANK, env.GROUP_WORLD_SIZE, env.MASTER_ADDR, env.MASTER_PORT,
    env.TORCHELASTIC_RESTART_COUNT, env.TORCHELASTIC_MAX_RESTARTS,
})  # fmt: skip


@frozen
class Figures:
    """Of all attempts together. None where it is not known."""

    attempts: int
    duration_s: float | None
    steps: int | None  # the highest that was reached
    final_loss: float | None  # of the last line that tells one, which may be a mean; None where it is not finite
    best_loss: float | None
    best_loss_step: int | None
    validation_loss: float | None  # the last one
    validation_step: int | None
    perplexity: float | None
    tokens_per_s: float | None  # median over all steps
    peak_memory_bytes: int | None  # of the rank that writes metrics, not of all: its accelerator's, else its process's


@frozen
class Facts:
    state: RunState
    metrics: Metrics
    record: Mapping[str, Any]  # run.json, as far as it can be read
    figures: Figures
    times: Timeline
    ended_ns: int | None  # of a run that is over

    @property
    def name(self) -> str:
        """Safe to show."""
        return shown_name(self.state)


def gather(run_dir: RunDir) -> Facts:
    """Reads the run's files once; never raises for what it finds in them."""
    state, metrics = look(run_dir), read_metrics(run_dir.metrics, keep_nan=True)
    times = timeline(run_dir, chain(metrics.steps, metrics.validations, metrics.saved))
    ended_ns = _ended_ns(state, times)
    return Facts(state, metrics, _record(run_dir), _figures(state, metrics, ended_ns), times, ended_ns)


def _ended_ns(state: RunState, times: Timeline) -> int | None:
    """Of a run that breaks off without a word, its last sign of life: heartbeats and metrics outlive the last event."""
    if state.state in {State.LOST, State.UNWATCHED, State.ENDED} and state.report is None:
        return times.ended_ns or state.ended_ns
    return state.ended_ns


def _seconds(state: RunState, ended_ns: int | None) -> float | None:
    if state.started_ns is None or (state.engine is not None and ended_ns is None):
        return None
    return max(0.0, ((ended_ns or state.looked_ns) - state.started_ns) / 1e9)


def losses(metrics: Metrics) -> list[tuple[Point, ...]]:
    return _lines(metrics.steps, lambda each: each.loss)


def learning_rates(metrics: Metrics) -> list[tuple[Point, ...]]:
    return _lines(metrics.steps, lambda each: each.learning_rate)


def speeds(metrics: Metrics) -> list[tuple[Point, ...]]:
    return _lines(metrics.steps, lambda each: each.tokens_per_s)


def memories(metrics: Metrics) -> list[tuple[Point, ...]]:
    return _lines(metrics.steps, lambda each: each.memory_bytes)


def validations(metrics: Metrics) -> list[tuple[Point, ...]]:
    return _lines(metrics.validations, lambda each: each.validation_loss)


def restarts(metrics: Metrics) -> list[tuple[float, str]]:
    """Where in the steps an attempt ended and another one began."""
    attempts = [list(steps) for _, steps in groupby(metrics.steps, lambda each: each.attempt)]
    return [
        (
            before[-1].step,
            f"attempt {after[0].attempt} begins at step {after[0].step:,}, after step {before[-1].step:,}",
        )
        for before, after in pairwise(attempts)
    ]


def sentence(state: RunState) -> str:
    """State and verdict: "failed after 12 s with exit code 1: rank 3 failed first: ValueError: x; 2 restarts"."""
    words = describe(state, restarts=False)
    if failure := culprit(state):
        who, _, what = failure.partition(": ")
        named = who.startswith("rank ") and state.state is not State.HUNG
        words += f"; {who} failed first: {what}" if named else f"; {failure}"
    count = len(state.attempts) - 1
    return f"{words}; {count} restart{'' if count == 1 else 's'}" if count else words


def not_restarting(state: RunState) -> str | None:
    """Why restarts that were left were not used."""
    return state.report.not_restarting if state.report else state.progress.not_restarting


def settings(facts: Facts) -> dict[str, str]:
    """What somebody chose for the run: layout, rules, words of the command, variables."""
    record = facts.record
    layout, rules = _mapping(record.get("layout")), _mapping(record.get("supervision"))
    chosen = {"ranks": str(facts.state.progress.rank_count)}
    chosen |= {f"layout.{name}": str(value) for name, value in layout.items()}
    chosen |= {f"supervision.{name}": json.dumps(value) for name, value in rules.items()}
    cluster = _mapping(record.get("cluster"))
    chosen["rank table"] = str(cluster.get("source") or "none")
    chosen["working directory"] = str(record.get("cwd", ""))
    chosen |= _said_in(arguments(facts))
    variables = _mapping(_first_rank(facts).get("env"))
    return chosen | {
        f"${name}": str(value) for name, value in variables.items() if value and not _is_of_every_run(name)
    }


def _is_of_every_run(name: str) -> bool:
    return name.startswith(OF_TLAUNCH) or name in OF_EVERY_RUN


def arguments(facts: Facts) -> list[str]:
    """What every rank runs, as run.json has it: secrets masked."""
    argv = _first_rank(facts).get("argv")
    return [str(word) for word in argv] if isinstance(argv, list) else []


def versions(facts: Facts) -> dict[str, str]:
    """As far as run.json tells them."""
    return {str(name): str(version) for name, version in _mapping(facts.record.get("versions")).items()}


def _said_in(argv: list[str]) -> dict[str, str]:
    """Every `--set KEY=VALUE` by its key, the rest as one command."""
    found: dict[str, str] = {}
    rest: list[str] = []
    words = iter(argv)
    for word in words:
        if word == "--set":
            name, _, value = next(words, "").partition("=")
            found[name] = value
        else:
            rest.append(word)
    return {"command": shlex.join(rest), **found}


def _first_rank(facts: Facts) -> Mapping[str, Any]:
    ranks = facts.record.get("ranks")
    return _mapping(ranks[0]) if isinstance(ranks, list) and ranks else {}


def _record(run_dir: RunDir) -> Mapping[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        return _mapping(json.loads(run_dir.run_json.read_bytes()))
    return {}


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _lines(records: Iterable[Any], value_of: Callable[[Any], float | None]) -> list[tuple[Point, ...]]:
    """One per attempt."""
    return [
        tuple((each.step, finite(value_of(each))) for each in of_attempt)
        for _, of_attempt in groupby(records, lambda each: each.attempt)
    ]


def _figures(state: RunState, metrics: Metrics, ended_ns: int | None) -> Figures:
    steps, last = metrics.steps, _last_validation(metrics)
    best = min((each for each in steps if finite(each.loss) is not None), key=_loss, default=None)
    speeds_seen = [speed for speed in (finite(each.tokens_per_s) for each in steps) if speed is not None]
    memory = [each.memory_bytes for each in steps if each.memory_bytes is not None]
    return Figures(
        attempts=len(state.attempts),
        duration_s=_seconds(state, ended_ns),
        steps=max((each.step for each in steps), default=None),
        final_loss=finite(next((each.loss for each in reversed(steps) if each.loss is not None), None)),
        best_loss=best.loss if best else None,
        best_loss_step=best.step if best else None,
        validation_loss=finite(last.validation_loss) if last else None,
        validation_step=last.step if last else None,
        perplexity=last.perplexity if last else None,
        tokens_per_s=statistics.median(speeds_seen) if speeds_seen else None,
        peak_memory_bytes=max(memory, default=None),
    )


def _last_validation(metrics: Metrics) -> Validation | None:
    told = (each for each in reversed(metrics.validations) if each.validation_loss is not None)
    return next(told, metrics.validations[-1] if metrics.validations else None)


def _loss(each: StepMetrics) -> float:
    return math.inf if each.loss is None else each.loss


def finite(value: float | None) -> float | None:
    """None where it is not, or so large that it may as well be: a program may write any number."""
    return value if value is not None and -LARGEST < value < LARGEST else None
