"""`tlaunch plan operators`, and how a run is asked for what it shows."""

import itertools
import json
import random
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from launcher.cli.commands.plan.arrangement import Sizes, arrange
from launcher.cli.commands.plan.drawing import drawing_of
from launcher.cli.commands.plan.table import lines_of, lines_of_all
from launcher.cli.text.columns import columns_of
from launcher.core.codec import encode
from launcher.core.run_dir import strategy_name
from launcher.sharding.report import ReportCollective, report_text
from launcher.sharding.report_set import alike
from tests.sharding.reports import RANKS, report_of, write_reports

from .transcript import transcript

SIZES = Sizes(box_width=100.0, gap=10.0, row_height=80.0, column_gap=30.0)
SVG = "{http://www.w3.org/2000/svg}"


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
    done += [
        launcher.call("plan", "operators", "--rank", 3, code=2),
        launcher.call("plan", "operators", "--all", code=2),
    ]
    (run / "strategy" / strategy_name(3)).unlink()
    done.append(launcher.call("plan", "operators", "--all", code=2))
    for path in (run / "strategy").iterdir():
        path.unlink()
    done.append(launcher.call("plan", "operators", code=2))
    assert transcript(*done, directory=launcher.directory) == snapshot


def test_json_is_the_report_itself(launcher, run):
    """Of a directory as well; of all ranks, all of them."""
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
    lines = [
        *lines_of(long_report(), width),
        "",
        *lines_of(report_of(0), width),
        "",
        *lines_of_all(alike([report_of(0)]), width),
    ]
    assert max(map(columns_of, lines)) <= width
    assert "\n".join(lines) == snapshot


def test_the_drawing(launcher, run):
    """It needs no other file, names every operator with its strategy, and says in words what colours say."""
    done = launcher.call("plan", "operators", "--svg", "operators.svg", code=0)
    assert done.stdout == "operators.svg\n"
    content = (launcher.directory / "operators.svg").read_text()
    assert not re.search(r"href|@import|url\(|<script|<image", content)
    root = ET.fromstring(content)
    report = report_of(0)
    boxes = {group.find(f"{SVG}text").text: group for group in root.iter(f"{SVG}g")}
    assert list(boxes) == [operator.name for operator in report.operators]
    for operator in report.operators:
        texts = [text.text for text in boxes[operator.name].iter(f"{SVG}text")]
        assert f"{operator.kind} {operator.strategy}" in texts
        assert (f"-> {operator.output.cuts}" in texts[2]) == bool(operator.output.size)
        assert str(operator.strategy) in boxes[operator.name].find(f"{SVG}title").text
    fills = {name: group.find(f"{SVG}rect").get("fill") for name, group in boxes.items()}
    assert len({fills["matmul"], fills["relu"], fills["mean"]}) == 3
    assert fills["matmul"] == fills["matmul2"]
    legend = {rect.get("fill") for rect in root.findall(f"{SVG}rect[@class='box']")}
    assert set(fills.values()) == legend
    moved = [path.find(f"{SVG}title").text for path in root.iter(f"{SVG}path") if "moved" in path.get("class")]
    assert moved == ["matmul to relu: slice", "matmul2 to sub: slice"]
    assert drawing_of([report]) == content


def test_names_are_no_markup(launcher, run):
    """Whatever a file may say."""
    name = '</text><script>"&\n\x1b[2J'
    operator = replace(report_of(0).operators[0], name=name, kind=name)
    report = replace(report_of(0), operators=(operator,), edges=(), collectives=(), recipe=name)
    (run / "strategy" / strategy_name(0)).write_text(report_text(report))
    for words in ((), ("--svg", "a.svg")):
        done = launcher.call("plan", "operators", *words, code=0)
        assert "\x1b" not in done.stdout
    content = (launcher.directory / "a.svg").read_text()
    assert "<script" not in content
    ET.fromstring(content)


@pytest.mark.parametrize("seed", range(12))
def test_boxes_are_arranged(seed):
    """Each below all that it takes from; none overlaps another, nor what runs past it; columns have all rows once."""
    numbers = random.Random(seed)
    count = numbers.randrange(1, 60)
    sources = {
        str(one): sorted(
            {str(numbers.randrange(max(0, one - 9), one)) for _ in range(numbers.randrange(3))} if one else []
        )
        for one in range(count)
    }
    arranged = arrange(sources, SIZES)
    row_of = {spot.name: spot.row for row in arranged.rows for spot in row if spot.is_box}
    assert set(row_of) == set(sources)
    assert all(row_of[taken] < row_of[name] for name in sources for taken in sources[name])
    for row in arranged.rows:
        ends = [(arranged.x[spot], (100.0 if spot.is_box else 16.0) / 2) for spot in row]
        for (x, half), (other, other_half) in itertools.pairwise(ends):
            assert other - other_half - (x + half) >= SIZES.gap - 1e-6
    assert [row for column in arranged.columns for row in column.rows] == list(range(len(arranged.rows)))
    assert all(lower.row == upper.row + 1 for upper, lower in arranged.links)


def test_a_long_chain_stands_in_columns():
    """With something that is taken beside the chain, so that lines run on from column to column."""
    sources = {str(one): [str(one - 1)] * (one > 0) for one in range(175)}
    sources |= {str(one): [str(one - 1), str(one - 9)] for one in range(9, 175, 9)}
    arranged = arrange(sources, SIZES)
    tallest = max(len(column.rows) for column in arranged.columns) * SIZES.row_height
    width = sum(column.width + SIZES.column_gap for column in arranged.columns)
    assert 0.5 < tallest / width < 2


@pytest.mark.parametrize("command", ["run --dry-run --json", "render bash"])
def test_a_run_is_asked_for_it(launcher, command):
    assert " --save-strategy" not in launcher.call(*command.split(), code=0).stdout.replace('",\n', " ")
    shown = launcher.call(*command.split(), "--save-strategy", code=0).stdout
    assert "--save-strategy" in shown


def test_a_command_of_ones_own_is_not_recorded(launcher, snapshot):
    done = launcher.call("run", "--devices", 1, "--save-strategy", "--dry-run", "--", "true", code=2)
    assert transcript(done, directory=launcher.directory) == snapshot
