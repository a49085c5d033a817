"""Strategy reports as a Graphviz graph: a box per operator, filled by the layout of its output.

Identical layers are drawn once: the cluster `encoder.0..5` has the operators of `encoder.0`, for all six layers.
Each box also has its strategy and output shards as text, so the graph can be read without colours.
"""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape

from launcher.cli.text.columns import cut_off, size
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.text import printable, ranges
from launcher.mesh.coordinates import AXES
from launcher.sharding.strategy_report import (
    PHASES,
    ReportCollective,
    ReportEdge,
    ReportOperator,
    ReportTensor,
    StrategyReport,
)

MAX_CHARS = 52  # per line of a box
MAX_DOT_S = 120.0
WHOLE = "#eeeeee"
FILLS = (
    "#cfe3f7", "#ffdfba", "#cdebc5", "#f9cfd6", "#ddd0f0", "#f3ecae", "#c5ebe6", "#f3d1ec", "#dccbb8", "#d5dbe3",
)  # fmt: skip
DEFAULTS = """\
  graph [fontname="monospace", fontsize=11, labelloc=t, labeljust=l]
  node [fontname="monospace", fontsize=10, shape=box, style="rounded,filled", color="#555555"]
  edge [fontname="monospace", fontsize=10, color="#888888"]"""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@frozen
class _Box:
    operator: ReportOperator
    edges: tuple[ReportEdge, ...]  # to this operator
    collectives: tuple[ReportCollective, ...]


@frozen
class _Layer:
    """A numbered layer of a network, such as `encoder.0` in the operator name `encoder.0.attention.query`."""

    stack: str
    number: int

    def to(self, last: int) -> str:
        """Return a name for the layers from this layer to number `last`, such as `encoder.0..5`."""
        numbers = f"{self.number}..{last}" if last > self.number else str(self.number)
        return f"{self.stack}.{numbers}" if self.stack else numbers


def _split(name: str) -> tuple[_Layer | None, str]:
    """Split an operator's name into its layer and the rest. The layer is None if the name has no number."""
    parts = name.split(".")
    at = next((at for at, part in enumerate(parts) if _NUMBER.fullmatch(part)), None)
    if at is None:
        return None, name
    return _Layer(".".join(parts[:at]), int(parts[at])), ".".join(parts[at + 1 :])


def svg_of(dot: str) -> bytes:
    """Draw a DOT graph as SVG with Graphviz. Raises UsageError if Graphviz is not installed."""
    program = shutil.which("dot")
    if program is None:
        hint = "install Graphviz (apt install graphviz), or use --dot FILE"
        raise UsageError("--svg needs Graphviz, which is not installed", hint=hint)
    try:
        done = subprocess.run(
            [program, "-Tsvg"], input=dot.encode(), capture_output=True, timeout=MAX_DOT_S, check=False
        )
    except subprocess.TimeoutExpired:
        hint = "use --dot FILE, and draw the file with `sfdp -Tsvg`, which is faster for large graphs"
        raise UnreadableError(f"{program} did not finish within {MAX_DOT_S:.0f} s", hint=hint) from None
    except OSError as error:
        raise UnreadableError(f"{program} cannot be started: {error.strerror}", hint="use --dot FILE") from None
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip() or "no message"
        raise UnreadableError(f"{program} failed with status {done.returncode}: {reason}", hint="use --dot FILE")
    return done.stdout


def dot_of(reports: Sequence[StrategyReport]) -> str:
    """Return a DOT graph of the operators in all reports. An operator that several ranks have is drawn once."""
    boxes: dict[str, _Box] = {}
    for report in reports:
        for operator in (each for each in report.operators if each.name not in boxes):
            edges = tuple(edge for edge in report.edges if edge.target == operator.name)
            collectives = tuple(one for one in report.collectives if one.operator == operator.name)
            boxes[operator.name] = _Box(operator, edges, collectives)
    shown, last = _folded(boxes)
    layouts = dict.fromkeys(_layout(boxes[name].operator.output) for name in shown.values())
    colours = itertools.cycle(FILLS)
    fills = {layout: WHOLE if layout.startswith("replicated") else next(colours) for layout in layouts}
    by_layer: dict[_Layer | None, list[str]] = {}
    for name in dict.fromkeys(shown.values()):
        by_layer.setdefault(_split(name)[0], []).append(name)
    lines = ["digraph operators {", f"  label=<{_legend(reports, fills)}>", DEFAULTS]
    for number, (layer, names) in enumerate(by_layer.items()):
        named = "" if layer is None else layer.to(last[layer])
        is_cluster = layer is not None and len(names) > 1
        lines += [f"  subgraph cluster_{number} {{", f"  label={_quoted(named)}"] if is_cluster else []
        for name in names:
            inner = _split(name)[1]
            title = inner if is_cluster else ".".join(filter(None, (named, inner)))
            lines.append(_node(boxes[name], title or named, fills, boxes))
        lines += ["  }"] if is_cluster else []
    return "\n".join([*lines, *dict.fromkeys(_edges(boxes, shown)), "}\n"])


def _folded(boxes: Mapping[str, _Box]) -> tuple[dict[str, str], dict[_Layer, int]]:
    """Merge consecutive identical layers. Return each operator's drawn name and the last layer of each range."""
    layers: dict[_Layer, dict[str, _Box]] = {}
    for name, box in boxes.items():
        layer, inner = _split(name)
        if layer is not None:
            layers.setdefault(layer, {})[inner] = box
    shown = {name: name for name in boxes}
    last: dict[_Layer, int] = {}
    first, first_content = None, None
    for layer in sorted(layers, key=lambda layer: (layer.stack, layer.number)):
        content = [_content(layer, inner, box) for inner, box in layers[layer].items()]
        if first and layer == _Layer(first.stack, last[first] + 1) and content == first_content:
            same = layers[first]
            shown |= {box.operator.name: same[inner].operator.name for inner, box in layers[layer].items()}
        else:
            first, first_content = layer, content
        last[first] = layer.number
    return shown, last


def _content(layer: _Layer, inner: str, box: _Box) -> object:
    """Return the properties of an operator that are compared to find identical layers."""

    def source(edge: ReportEdge) -> str | None:
        from_layer, name = _split(edge.source)
        return name if from_layer == layer else None

    operator = box.operator
    tensors = [replace(each, name="") for each in (*operator.inputs, operator.output)]
    edges = [(source(edge), edge.input, edge.steps) for edge in box.edges]
    collectives = [replace(one, operator="") for one in box.collectives]
    return inner, operator.kind, operator.stage, operator.calls, tensors, edges, collectives


def _node(box: _Box, title: str, fills: Mapping[str, str], boxes: Mapping[str, _Box]) -> str:
    operator, output = box.operator, box.operator.output
    data = dict.fromkeys(edge.source for edge in box.edges if edge.source not in boxes)
    notes = {"takes": data} | {
        phase: dict.fromkeys(one.kind for one in box.collectives if one.phase == phase) for phase in PHASES
    }
    lines = (
        title,
        f"{operator.kind} {operator.strategy}",
        f"-> {output.cuts}, shard {_sizes(output.size)}" if output.size else "-> scalar",
        "; ".join(f"{name} {', '.join(words)}" for name, words in notes.items() if words),
    )
    label = _quoted(*(cut_off(printable(line), MAX_CHARS) for line in lines if line), end="\\l")
    about = [
        f"{operator.name}: {operator.kind}, stage {operator.stage}",
        f"strategy {operator.strategy}",
        *(f"input {number}: {_in_words(each)}" for number, each in enumerate(operator.inputs)),
        f"output: {_in_words(output)}",
        *(
            f"{one.phase}: {one.count} x {one.kind} of {size(one.bytes)} over {ranges(one.group)}, {one.what}"
            for one in box.collectives
        ),
    ]
    tooltip = _quoted(*about, end="\\n")
    return f'  {_quoted(operator.name)} [label={label}, tooltip={tooltip}, fillcolor="{fills[_layout(output)]}"]'


def _edges(boxes: Mapping[str, _Box], shown: Mapping[str, str]) -> Iterator[str]:
    """Yield a DOT statement for each edge between operators. Merged layers yield the same statement several times."""
    for edge in (edge for box in boxes.values() for edge in box.edges if edge.source in boxes):
        source, target = shown[edge.source], shown[edge.target]
        source_layer, target_layer = _split(edge.source)[0], _split(edge.target)[0]
        # Edges between identical layers lead back to the first operator, so they must not affect the ranking.
        is_between = source_layer != target_layer and _split(source)[0] == _split(target)[0]
        look = f"label={_quoted(', '.join([*edge.steps, *['between layers'] * is_between]))}"
        look += ', color="#b3261e", fontcolor="#b3261e", style=dashed' if edge.steps else ""
        look += ", constraint=false" if is_between else ""
        yield f"  {_quoted(source)} -> {_quoted(target)} [{look}]"


def _legend(reports: Sequence[StrategyReport], fills: Mapping[str, str]) -> str:
    """Return a DOT label with the graph's title and the meaning of each colour."""
    first = reports[0]
    who = f"rank {first.rank} of {first.ranks}" if len(reports) == 1 else f"all {first.ranks} ranks"
    title = escape(printable(f"{first.recipe}, {first.layout}: {who}"))
    rows = [f"<b>{title}</b>", "Boxes are filled by the layout of the output:"]
    cells = [f"<td>{row}</td>" for row in rows] + [
        f'<td bgcolor="{fill}">{layout}</td>' for layout, fill in fills.items()
    ]
    return f'<table border="0">{"".join(f"<tr>{cell}</tr>" for cell in cells)}</table>'


def _layout(tensor: ReportTensor) -> str:
    if all(parts == 1 for parts in tensor.cuts):
        return "replicated on every rank"
    # Index names are local to an operator's expression, so only mesh axes are shown.
    by = ", ".join(f"dim {dim} by {axis}" for dim, axis in enumerate(tensor.by) if axis in AXES)
    return f"{tensor.cuts}: {by}" if by else str(tensor.cuts)


def _in_words(tensor: ReportTensor) -> str:
    cuts = [
        f"dim {dim} into {parts} by {axis}"
        for dim, (parts, axis) in enumerate(zip(tensor.cuts, tensor.by, strict=True))
        if parts > 1
    ]
    start = "" if tensor.start is None else f" from ({', '.join(map(str, tensor.start))})"
    split = f"split {', '.join(cuts)}" if cuts else "not split"
    return f"{tensor.name} {_sizes(tensor.shape)}, {split}; this rank has {_sizes(tensor.size)}{start}"


def _sizes(lengths: Sequence[int | None]) -> str:
    return "x".join("?" if length is None else str(length) for length in lengths) or "scalar"


def _quoted(*lines: str, end: str = "") -> str:
    r"""Return lines as one quoted DOT string. `end` is added to each line: \l aligns it left, and \n centres it."""
    safe = (printable(line).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;") for line in lines)
    return f'"{"".join(f"{line}{end}" for line in safe)}"'
