"""The strategy report of one rank: its operators with the layouts of their inputs and outputs, and the collectives of a step.

    RUN/strategy/rank3.json
    {"recipe": "quickstart", "attempt": 0, "layout": "dp=1 mp=8 pp=1", "ranks": 8, "rank": 3, "step": null,
     "operators": [
       {"name": "matmul", "kind": "matmul", "stage": 0, "calls": 1,
        "inputs": [{"name": "x", "shape": [16, 32], "cuts": [2, 4], "by": ["i", "k"], "start": [0, 24], "size": [8, 8]}, ...],
        "output": {"name": "matmul", "shape": [16, 16], "cuts": [2, 1], ...}}, ...],
     "edges": [{"source": "matmul", "target": "relu", "input": 0, "steps": ["slice"]}, ...],
     "collectives": [
       {"operator": "matmul", "phase": "forward", "kind": "all_reduce", "group": [0, 1, 2, 3], "bytes": 512, "count": 1,
        "what": "output"}, ...]}

It contains what MindSpore's tutorials read from its graphs (step_parallel_begin_*.ir, execute_*.ir). It is derived from a
sharding plan (`plan.py`), or recorded during a training step (launcher/trainer/telemetry/recording.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from launcher.core.atomic import write_text
from launcher.core.codec import decode, encode
from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.core.regular_files import read_regular
from launcher.sharding.expression import Strategy

ReportPhase = Literal["forward", "backward", "optimizer"]  # optimizer: everything after backward
ReportKind = Literal[
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "send", "receive", "broadcast", "slice"
]
PHASES: tuple[ReportPhase, ...] = ("forward", "backward", "optimizer")
HINT = "a run with --save-strategy writes a new one"
MAX_BYTES = 1 << 30  # limit for a report: a million operators need less


@frozen
class ReportTensor:
    """An input or output of an operator. `shape`, `cuts`, `by`, `size` and `start` have one item per dim."""

    name: str  # of the operator that computes it, of the parameter, or of the data
    shape: tuple[int | None, ...]  # of the whole tensor; None if ranks have parts of different, unknown sizes
    cuts: tuple[int, ...]  # number of parts
    by: tuple[str, ...]  # what cuts it: an index of the operator's expression or an axis of the layout; "" for nothing
    size: tuple[int, ...]  # of this rank's part
    # Of this rank's part in the whole tensor; None if it is not a box, such as rows of a batch
    start: tuple[int, ...] | None = None
    is_parameter: bool = False


@frozen
class ReportOperator:
    name: str
    kind: str
    inputs: tuple[ReportTensor, ...]
    output: ReportTensor
    stage: int = 0  # of the pipeline
    calls: int = 1  # per step: once per micro batch; the layouts are those of the first

    @property
    def strategy(self) -> Strategy:
        """For each input, the number of parts of each dim, such as ((2, 4), (4, 1))."""
        return tuple(each.cuts for each in self.inputs)


@frozen
class ReportEdge:
    """An input of an operator that comes from another operator or from the data."""

    source: str
    target: str
    input: int
    steps: tuple[str, ...] = ()  # of the redistribution in between


@frozen
class ReportCollective:
    """A collective, message or slice that one rank runs in a step. `count` is the number of times it runs.

    `bytes`: of one tensor that is reduced, exchanged, sent, received or broadcast; of a gather's result; of what a
    slice leaves. The group of a message is its sender, then its receiver.
    """

    operator: str  # or "optimizer", "pipeline", "loss"
    phase: ReportPhase
    kind: ReportKind
    group: tuple[int, ...]
    bytes: int
    count: int
    what: str  # the tensor summed, gathered or moved: "output", "gradient of input 0", "weights"


@frozen
class StrategyReport:
    recipe: str
    layout: str  # "dp=2 mp=2 pp=1"
    ranks: int
    rank: int
    operators: tuple[ReportOperator, ...]  # in the order of computation
    edges: tuple[ReportEdge, ...]
    collectives: tuple[ReportCollective, ...]  # in the order of their first occurrence in a step
    step: int | None = None  # that was recorded; None: derived from a plan
    attempt: int = 0  # of the run


def save_report(path: Path, report: StrategyReport) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, report_text(report))


def report_text(report: StrategyReport) -> str:
    """Return a report as JSON, with one line per operator, edge and collective."""
    encoded = encode(report)
    lists = {key: encoded.pop(key) for key in ("operators", "edges", "collectives")}
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in encoded.items())
    rows = {key: ",\n".join(f"    {json.dumps(row)}" for row in listed) for key, listed in lists.items()}
    body = ",\n".join(
        f"  {json.dumps(key)}: [\n{each}\n  ]" if each else f"  {json.dumps(key)}: []" for key, each in rows.items()
    )
    return f"{{\n{head}{body}\n}}\n"


def read_report(path: Path) -> StrategyReport:
    """Read a report file that was written with `report_text`.

    Raises:
        UnreadableError: the file is missing or is not a report. The message has the path and the problem.
    """
    try:
        report = decode(StrategyReport, json.loads(read_regular(path, MAX_BYTES)))
        trouble = next(_troubles(report), None)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # includes a wrong encoding
        raise UnreadableError(f"{path}: not a complete strategy report: {error}", hint=HINT) from None
    if trouble is not None:
        raise UnreadableError(f"{path}: not a complete strategy report: {trouble}", hint=HINT)
    return report


def _troubles(report: StrategyReport) -> Iterator[str]:
    if not 0 <= report.rank < report.ranks:
        yield f"rank {report.rank} is not one of {report.ranks} ranks"
    known = {operator.name for operator in report.operators}
    if len(known) < len(report.operators):
        yield "two operators have the same name"
    inputs = {operator.name: operator.inputs for operator in report.operators}
    for operator in report.operators:
        for tensor in (*operator.inputs, operator.output):
            dims = len(tensor.shape)
            start = tensor.size if tensor.start is None else tensor.start
            lengths = {len(each) for each in (tensor.shape, tensor.cuts, tensor.by, tensor.size, start)}
            if len(lengths) > 1 or min(tensor.cuts, default=1) < 1:
                yield f"{tensor.name} at {operator.name} has an invalid layout for {dims} dims"
    for edge in report.edges:
        if edge.target not in known or not 0 <= edge.input < len(inputs[edge.target]):
            yield f"an edge leads to a missing input: {edge.input} of {edge.target}"
    for collective in report.collectives:
        outside = [rank for rank in collective.group if not 0 <= rank < report.ranks]
        if outside or report.rank not in collective.group or min(collective.bytes, collective.count) < 0:
            yield f"rank {report.rank} is not in the group {list(collective.group)} of its {collective.kind}"
