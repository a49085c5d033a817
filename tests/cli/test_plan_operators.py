"""`tlaunch plan operators`, and how a run is asked for what it shows."""

import itertools
import json
import re
import shutil
import sys
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from launcher.cli.commands.plan.graph import dot_of, svg_of
from launcher.cli.commands.plan.operators import lines_of, lines_of_all
from launcher.cli.text.columns import columns_of
from launcher.core.codec import encode
from launcher.core.run_dir import strategy_name
from launcher.core.text import printable
from launcher.sharding.report_set import equal_ranks
from launcher.sharding.strategy_report import ReportCollective, ReportEdge, report_text
from tests.sharding.reports import RANKS, report_of, write_reports

from .transcript import transcript

SVG = "{http://www.w3.org/2000/svg}"
needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")


@pytest.fixture(name="run")
def _run(launcher):
    """The directory of a run that ended, and has reports of all ranks."""
    directory = launcher.directory / "runs" / "20260101-000000-quickstart"
    directory.mkdir(parents=True)
    (directory / "run.json").write_text("{}")
    (directory / "events.jsonl").write_text("")
    write_reports(directory / "strategy")
    return directory


def test_what_it_says(launcher, run, snapshot):
    done = [
        launcher.call("plan", "operators", code=0),
        launcher.call("plan", "operators", "--rank", 6, "--collectives", code=0),
        launcher.call("plan", "operators", run.name, "--all", code=0),
        launcher.call("plan", "operators", "--rank", 8, code=2),
        launcher.call("plan", "operators", "--rank", 1, "--all", code=2),
        launcher.call("plan", "operators", "--svg", "a.svg", "--json", code=2),
    ]
    (run / "strategy" / strategy_name(3)).write_text("{}")
    launcher.call("plan", "operators", code=0)  # of another rank
    done += [launcher.call("plan", "operators", *words, code=2) for words in (("--rank", 3), ("--all",))]
    (run / "strategy" / strategy_name(3)).unlink()
    done.append(launcher.call("plan", "operators", "--all", code=2))
    for path in (run / "strategy").iterdir():
        path.unlink()
    done.append(launcher.call("plan", "operators", code=2))
    assert transcript(*done, directory=launcher.directory) == snapshot


def test_json_is_the_report_itself(launcher, run):
    assert json.loads(launcher.call("plan", "operators", "--json", code=0).stdout) == encode(report_of(0))
    found = launcher.call("plan", "operators", run / "strategy", "--json", "--all", code=0).stdout
    assert json.loads(found) == [encode(report_of(rank)) for rank in range(RANKS)]


def long_report():
    """Names and groups as long as those of large trainings."""
    report = report_of(0)
    more = [
        ReportCollective("optimizer", "optimizer", "reduce_scatter", tuple(range(0, 8, 2)), 1 << 40, 3, "gradients"),
        ReportCollective("pipeline", "forward", "send", (0, 4), 123456, 16, "activations"),
    ]
    operators = tuple(
        replace(one, name=f"decoder.11.cross_attention.{one.name}", kind="attention") for one in report.operators
    )
    named = [replace(one, operator=f"decoder.11.cross_attention.{one.operator}") for one in report.collectives]
    return replace(report, operators=operators, edges=(), collectives=(*named, *more))


@pytest.mark.parametrize("width", [80, 200])
def test_lines_fit_a_terminal(width, snapshot):
    every = lines_of_all(equal_ranks([report_of(0)]), width)
    lines = [*lines_of(long_report(), width), "", *lines_of(report_of(0), width), "", *every]
    assert max(map(columns_of, lines)) <= width
    assert "\n".join(lines) == snapshot


def test_the_graph(launcher, run):
    done = launcher.call("plan", "operators", "--dot", "operators.dot", code=0)
    assert done.stdout == "operators.dot\n"
    report = report_of(0)
    content = (launcher.directory / "operators.dot").read_text()
    assert content == dot_of([report])
    nodes = dict(re.findall(r'^  "(\w+)" \[label=(.*)\]$', content, re.MULTILINE))
    assert list(nodes) == [operator.name for operator in report.operators]
    for operator in report.operators:
        label, tooltip = nodes[operator.name].split(", tooltip=")
        assert label.startswith(f'"{operator.name}\\l{operator.kind} {operator.strategy}\\l-> ')
        assert (f"-> {operator.output.cuts}" in label) == bool(operator.output.size)
        assert f"strategy {operator.strategy}" in tooltip
    fills = {name: re.search(r'fillcolor="(.*)"', text)[1] for name, text in nodes.items()}
    assert len({fills["matmul"], fills["relu"], fills["mean"]}) == 3
    assert fills["matmul"] == fills["matmul2"]
    assert set(fills.values()) == set(re.findall(r'bgcolor="(.*?)"', content))
    moved = re.findall(r'"(\w+)" -> "(\w+)" \[label="(\w+)", .*style=dashed', content)
    assert moved == [("matmul", "relu", "slice"), ("matmul2", "sub", "slice")]


def layered(*layers, cuts=None):
    """A report whose operators are `add` and `relu` of each of these layers, which follow one another."""
    first = report_of(0).operators[0]
    names = [f"{layer}.{name}" for layer in layers for name in ("add", "relu")]
    outputs = [replace(first.output, name=name, cuts=(cuts or {}).get(name, (2, 1))) for name in names]
    operators = [replace(first, name=output.name, kind=output.name[-3:], output=output) for output in outputs]
    edges = [ReportEdge(source, target, 0) for source, target in itertools.pairwise(["x", *names])]
    return replace(report_of(0), operators=tuple(operators), edges=tuple(edges), collectives=())


@pytest.mark.parametrize(("layers", "cuts", "clusters"), [
    (range(6), {}, ["encoder.0..5"]),
    ([0, 1, 3], {}, ["encoder.0..1", "encoder.3"]),
    (range(12), {"encoder.10.relu": (1, 2)}, ["encoder.0..9", "encoder.10", "encoder.11"]),
])  # fmt: skip
def test_equal_layers_are_drawn_once(layers, cuts, clusters):
    dot = dot_of([layered(*(f"encoder.{layer}" for layer in layers), cuts=cuts)])
    assert re.findall(r'^  label="(.*)"$', dot, re.MULTILINE) == clusters
    assert len(re.findall(r"tooltip=", dot)) == 2 * len(clusters)


def test_edges_of_equal_layers_are_drawn_once():
    """What leads from one of them to the next leads from the last operator of the cluster to its first."""
    dot = dot_of([layered(*(f"encoder.{layer}" for layer in range(6)), "decoder.0")])
    assert re.findall(r'"(\S+)" -> "(\S+)" \[label="(.*?)"', dot) == [
        ("encoder.0.add", "encoder.0.relu", ""),
        ("encoder.0.relu", "encoder.0.add", "between layers"),
        ("encoder.0.relu", "decoder.0.add", ""),
        ("decoder.0.add", "decoder.0.relu", ""),
    ]


@needs_dot
def test_the_drawing(launcher, run):
    done = launcher.call("plan", "operators", "--all", "--svg", "a.svg", "--dot", "a.dot", code=0)
    assert done.stdout == "a.svg\na.dot\n"
    launcher.call("plan", "operators", "--svg", "a.svg", code=0)
    launcher.write("train.py", "print()")
    launcher.refused(2, "plan operators --svg train.py", "plan operators --dot train.py")
    content = (launcher.directory / "a.svg").read_text()
    assert not re.search(r" href=|@import|url\(|<script|<image", content)
    titles = [title.text for title in ET.fromstring(content).iter(f"{SVG}title")]
    assert {operator.name for operator in report_of(0).operators} <= set(titles)


def test_without_graphviz_a_drawing_is_refused(launcher, run, snapshot):
    bin_directory = launcher.directory / "bin"
    bin_directory.mkdir()
    svg, dot = "plan operators --svg a.svg --dot b.dot", "plan operators --dot a.dot"
    missing = launcher.scene(svg, code=2, env={"PATH": str(bin_directory)})
    (bin_directory / "dot").write_text("#!/bin/sh\necho 'no layout' >&2\nexit 3\n")
    (bin_directory / "dot").chmod(0o755)
    failing = launcher.scene(svg, code=2, env={"PATH": str(bin_directory)})
    assert "\n\n".join((missing, failing, launcher.scene(dot, code=0))) == snapshot
    assert {path.name for path in launcher.directory.iterdir()} == {"runs", "bin", "a.dot"}


HOSTILE = '</text><script>"&lt;\\\n\x1b[2J'


def test_names_are_no_markup(launcher, run):
    operator = replace(report_of(0).operators[0], name=HOSTILE, kind=HOSTILE)
    report = replace(report_of(0), operators=(operator,), edges=(), collectives=(), recipe=HOSTILE)
    (run / "strategy" / strategy_name(0)).write_text(report_text(report))
    for words in ((), ("--dot", "a.dot")):
        assert "\x1b" not in launcher.call("plan", "operators", *words, code=0).stdout
    content = (launcher.directory / "a.dot").read_text()
    assert content.replace("\n", "").isprintable()
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", content)
    assert "script" not in outside.replace("&lt;script&gt;", "")  # of the title, which is markup


@needs_dot
def test_names_are_drawn_as_they_are(launcher, run):
    operator = replace(report_of(0).operators[0], name=HOSTILE, kind=HOSTILE)
    svg = svg_of(dot_of([replace(report_of(0), operators=(operator,), edges=(), collectives=(), recipe=HOSTILE)]))
    assert b"<script" not in svg
    texts = [text.text for text in ET.fromstring(svg).iter(f"{SVG}text")]
    assert any(text.startswith(printable(HOSTILE)) for text in texts)


@pytest.mark.parametrize("command", ["run --dry-run --json", "render bash"])
def test_a_run_is_asked_for_it(launcher, command):
    assert " --save-strategy" not in launcher.call(*command.split(), code=0).stdout.replace('",\n', " ")
    shown = launcher.call(*command.split(), "--save-strategy", code=0).stdout
    assert "--save-strategy" in shown


def test_a_command_of_ones_own_is_not_recorded(launcher, snapshot):
    done = launcher.call("run", "--devices", 1, "--save-strategy", "--dry-run", "--", "true", code=2)
    assert transcript(done, directory=launcher.directory) == snapshot


def test_an_own_network_is_shown(launcher):
    program = """
import torch
from torch import nn
from launcher.trainer.shard.api import sharded
examples = [torch.ones(4, 8), torch.ones(4, 2)]
network = nn.Sequential(nn.Linear(8, 2, bias=False))
with sharded(network, examples, loss=nn.MSELoss(), strategies={"0": ((1, 2), (1, 2))}) as cut:
    cut(*examples).backward()
"""
    launcher.call("run", "--devices", 2, "--", sys.executable, "-c", program, code=0)
    reports = [
        json.loads(launcher.call("plan", "operators", "--rank", rank, "--json", code=0).stdout) for rank in (0, 1)
    ]
    assert [(each["recipe"], each["rank"], len(each["operators"])) for each in reports] == [
        ("Sequential", 0, 2), ("Sequential", 1, 2),
    ]  # fmt: skip
    assert [each["kind"] for each in reports[0]["collectives"]][:1] == ["all_reduce"]
