"""The figures of a report as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from launcher.cli.commands.report.figures import Facts, finite, losses, memories, speeds, validations
from launcher.cli.text.columns import counted, duration, number, size
from launcher.cli.text.run_text import culprit
from launcher.logs.terminal import one_line
from launcher.runs.metrics import Metrics

NOTHING = "-"
HOW = (
    " (the bundled trainer writes them; any program may, "
    'one JSON object a line: {"schema": 1, "time_ns": ..., "attempt": 0, "step": 1, "loss": 2.5})'
)


def missing(facts: Facts, *, alone: bool) -> str:
    """Of a run without steps: what its program did not write."""
    words = "no metrics: the program wrote no metrics.jsonl into its run directory"
    if facts.metrics.unreadable:
        words = f"no metrics: metrics.jsonl cannot be read: {facts.metrics.unreadable}"
    elif facts.metrics.found:
        count = len(facts.metrics.validations)
        words = "no steps in metrics.jsonl" + (f", only {counted(count, 'validation')}" if count else "")
    return words if alone else f"{facts.name}: {words}"


def may_be_told_how(runs: Sequence[Facts]) -> bool:
    """Whether the program of one of them seems not to know how to write metrics."""
    return any(not facts.metrics.steps and not facts.metrics.unreadable for facts in runs)


def not_understood(facts: Facts, *, alone: bool) -> str | None:
    """What of metrics.jsonl was not read although other lines were, and why; None where that is nothing."""
    metrics, words = facts.metrics, []
    if metrics.strange:
        words.append(f"{counted(metrics.strange, 'line')} not understood")
        if metrics.first_strange:
            words.append(f"the first: {one_line(metrics.first_strange)}")
    if metrics.steps and metrics.unreadable:
        words.append(f"the rest cannot be read: {metrics.unreadable}")
    told = f"metrics.jsonl: {'; '.join(words)}"
    return None if not words else told if alone else f"{facts.name}: {told}"


def called(name: str, runs: Sequence[Facts]) -> str:
    """What a figure is called for these runs: the loss of one that goes on is not final."""
    return "last loss" if name == "final loss" and any(facts.state.state.going_on for facts in runs) else name


def _state(facts: Facts) -> str:
    code = facts.state.exit_code
    return facts.state.state.value + (f", exit code {code}" if code else "")


def _verdict(facts: Facts) -> str:
    return culprit(facts.state) or NOTHING


def _attempts(facts: Facts) -> str:
    return str(facts.figures.attempts)


def _duration(facts: Facts) -> str:
    return duration(facts.figures.duration_s)


def _steps(facts: Facts) -> str:
    return number(facts.figures.steps, ",d")


def _final_loss(facts: Facts) -> str:
    steps = facts.metrics.steps
    told = [(each.step, each.loss) for each in steps if each.loss is not None]
    if not told:
        return NOTHING
    step, loss = told[-1]
    words = _loss(loss)
    return (words if step == steps[-1].step else f"{words} at step {step:,}") + _last_finite(told)


def _best_loss(facts: Facts) -> str:
    figures = facts.figures
    return _at(number(figures.best_loss, ".4f"), figures.best_loss_step)


def _validation(facts: Facts) -> str:
    figures = facts.figures
    told = [(each.step, each.validation_loss) for each in facts.metrics.validations if each.validation_loss is not None]
    words = _at(_loss(told[-1][1]) if told else NOTHING, figures.validation_step)
    if figures.perplexity is not None:
        words += f", perplexity {number(figures.perplexity, ',.2f')}"
    return words + _last_finite(told)


def _speed(facts: Facts) -> str:
    return number(facts.figures.tokens_per_s, ",.0f")


def _memory(facts: Facts) -> str:
    peak_bytes = facts.figures.peak_memory_bytes
    return NOTHING if peak_bytes is None else f"{size(peak_bytes)} of one rank"


def _loss(value: float) -> str:
    words = number(value, ".4f")
    return words if math.isfinite(value) else f"{words} (not finite)"


def _last_finite(told: Sequence[tuple[int, float]]) -> str:
    """Where the last one is not: steps and losses."""
    known = [(step, loss) for step, loss in told if finite(loss) is not None]
    if not known or math.isfinite(told[-1][1]):
        return ""
    return f"; last finite {number(known[-1][1], '.4f')} at step {known[-1][0]:,}"


def _at(words: str, step: int | None) -> str:
    return words if step is None or words == NOTHING else f"{words} at step {step:,}"


# What a figure is called, and how it is told.
FIGURES: tuple[tuple[str, Callable[[Facts], str]], ...] = (
    ("state", _state),
    ("first failure", _verdict),
    ("attempts", _attempts),
    ("duration", _duration),
    ("steps", _steps),
    ("final loss", _final_loss),
    ("best loss", _best_loss),
    ("last validation", _validation),
    ("median tokens/s", _speed),
    ("peak memory", _memory),
)
# Of which figure a line can be drawn.
LINES: dict[str, Callable[[Metrics], list[tuple[tuple[float, float | None], ...]]]] = {
    "final loss": losses,
    "last validation": validations,
    "median tokens/s": speeds,
    "peak memory": memories,
}


def values_of(name: str, facts: Facts) -> Sequence[float | None]:
    """The series behind a figure, all attempts one after the other; empty where there is none."""
    lines = LINES[name](facts.metrics) if name in LINES else []
    return [y for line in lines for _, y in line]
