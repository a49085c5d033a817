"""The figures of a report as people read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from launcher.cli.columns import counted, duration, number, size
from launcher.cli.report.figures import Facts, losses, memories, speeds, validations
from launcher.cli.run_words import culprit
from launcher.runs.metrics import Metrics

NOTHING = "-"
HOW = (
    " (the bundled trainer does; any program may, "
    'one JSON object a line: {"schema": 1, "time_ns": ..., "attempt": 0, "step": 1, "loss": 2.5})'
)


def missing(facts: Facts, *, alone: bool) -> str:
    """Of a run without steps: what its program did not write."""
    metrics = facts.metrics
    words = "no metrics: the program wrote no metrics.jsonl into its run directory"
    if metrics.found:
        other, odd = counted(len(metrics.validations), "validation"), counted(metrics.strange, "line")
        words = f"no steps: metrics.jsonl holds none, {other} and {odd} that could not be understood"
    return words if alone else f"{facts.name}: {words}"


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
    finite = [step for step in steps if step.loss is not None]
    if steps and finite and steps[-1].loss is None:
        return f"no finite value in the last line; {number(finite[-1].loss, '.4f')} at step {finite[-1].step:,}"
    return number(facts.figures.final_loss, ".4f")


def _best_loss(facts: Facts) -> str:
    figures = facts.figures
    return _at(number(figures.best_loss, ".4f"), figures.best_loss_step)


def _validation(facts: Facts) -> str:
    figures = facts.figures
    words = _at(number(figures.validation_loss, ".4f"), figures.validation_step)
    return words if figures.perplexity is None else f"{words}, perplexity {number(figures.perplexity, ',.2f')}"


def _speed(facts: Facts) -> str:
    return number(facts.figures.tokens_per_s, ",.0f")


def _memory(facts: Facts) -> str:
    peak_bytes = facts.figures.peak_memory_bytes
    return NOTHING if peak_bytes is None else f"{size(peak_bytes)} of one rank"


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
