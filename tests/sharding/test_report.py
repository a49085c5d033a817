"""Strategy reports: made of a plan, written, read again, and compared over ranks."""

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.core.errors import UnreadableError
from launcher.core.run_dir import strategy_name
from launcher.sharding.expression import cuttings
from launcher.sharding.plan import plan_of, plan_report
from launcher.sharding.report_set import equal_ranks, read_all, reported_ranks
from launcher.sharding.strategy_report import read_report, report_text

from .networks import quickstart
from .reports import GRAPH, RANKS, report_of, tutorials_plan, write_reports


def test_the_tutorials_listing():
    report = report_of(6)
    assert [(each.name, each.strategy) for each in report.operators[:3]] == [
        ("matmul", ((2, 4), (4, 1))),
        ("relu", ((2, 4),)),
        ("matmul2", ((2, 4), (4, 1))),
    ]
    x, weight = report.operators[0].inputs
    assert (x.by, x.start, x.size, x.is_parameter) == (("i", "k"), (8, 16), (8, 8), False)
    assert (weight.by, weight.start, weight.size, weight.is_parameter) == (("k", ""), (16, 0), (8, 16), True)
    forward = [each for each in report.collectives if each.phase == "forward"]
    assert [(each.operator, each.kind, each.group, each.bytes) for each in forward[:2]] == [
        ("matmul", "all_reduce", (4, 5, 6, 7), 8 * 16 * 4),
        ("relu", "slice", (4, 5, 6, 7), 8 * 4 * 4),
    ]
    assert [(edge.source, edge.target, edge.steps) for edge in report.edges] == [
        ("x", "matmul", ()), ("matmul", "relu", ("slice",)), ("relu", "matmul2", ()), ("matmul2", "sub", ("slice",)),
        ("label", "sub", ()), ("sub", "square", ()), ("square", "mean", ()),
    ]  # fmt: skip


@given(st.sampled_from([1, 2, 4, 8]), st.data())
def test_what_is_written_is_read_again(tmp_path_factory, ranks, data):
    graph = quickstart()
    chosen = {
        operator.name: data.draw(st.sampled_from(list(cuttings(operator.expression, ranks))))
        for operator in graph.operators
    }
    plan, rank = plan_of(graph, chosen, ranks), data.draw(st.integers(0, ranks - 1))
    report = plan_report(plan, rank, recipe="quickstart", layout="dp=1", attempt=2)
    path = tmp_path_factory.mktemp("report") / strategy_name(rank)
    path.write_text(report_text(report))
    assert read_report(path) == report
    planned = list(plan.collectives())
    assert sum(each.count for each in report.collectives) == len(planned)
    assert sum(each.count * each.bytes for each in report.collectives) == sum(each.bytes for each in planned)


def damaged(change):
    found = json.loads(report_text(report_of(3)))
    change(found)
    return json.dumps(found)


@pytest.mark.parametrize("content", {
    "half of it": report_text(report_of(3))[:900],
    "no JSON": "\x00", "another encoding": "\xff", "a list": "[]",
    "no operators": damaged(lambda found: found.pop("operators")),
    "a rank that does not exist": damaged(lambda found: found.update(rank=8)),
    "an unknown phase": damaged(lambda found: found["collectives"][0].update(phase="sideways")),
    "another rank's group": damaged(lambda found: found["collectives"][0].update(group=[4, 5])),
    "ranks beyond all": damaged(lambda found: found["collectives"][0].update(group=[3, 9])),
    "fewer bytes than none": damaged(lambda found: found["collectives"][0].update(bytes=-1)),
    "one name twice": damaged(lambda found: found["operators"].append(found["operators"][0])),
    "an edge to nowhere": damaged(lambda found: found["edges"][0].update(target="nobody")),
    "an edge to no input": damaged(lambda found: found["edges"][0].update(input=2)),
    "a layout of other dims": damaged(lambda found: found["operators"][1]["output"].update(cuts=[2])),
    "no parts": damaged(lambda found: found["operators"][1]["output"].update(cuts=[2, 0])),
}.values())  # fmt: skip
def test_a_damaged_report_is_refused_by_its_name(tmp_path, content):
    path = tmp_path / "rank3.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(UnreadableError) as caught:
        read_report(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_report_in_the_place_of_another_ranks_is_refused(tmp_path):
    write_reports(tmp_path)
    (tmp_path / strategy_name(3)).write_text(report_text(report_of(2)))
    with pytest.raises(UnreadableError, match=r"rank3\.json: expected rank 3, but found the report of rank 2"):
        read_all(tmp_path)


def test_a_pipe_is_no_report(tmp_path):
    write_reports(tmp_path)
    os.mkfifo(tmp_path / strategy_name(9))
    with pytest.raises(UnreadableError, match=r"rank9\.json"):
        read_all(tmp_path)


def test_ranks_that_do_the_same_are_told_once(tmp_path):
    write_reports(tmp_path)
    [group] = equal_ranks(read_all(tmp_path))
    assert (group.ranks, group.but_for) == (tuple(range(RANKS)), ("groups", "parts of tensors"))
    other = replace(report_of(5), operators=report_of(5).operators[:3], edges=(), collectives=())
    (tmp_path / strategy_name(5)).write_text(report_text(other))
    assert [group.ranks for group in equal_ranks(read_all(tmp_path))] == [(0, 1, 2, 3, 4, 6, 7), (5,)]


def test_the_newest_attempt_counts(tmp_path):
    write_reports(tmp_path)
    fewer = [replace(report_of(rank), ranks=2, operators=(), edges=(), collectives=(), attempt=1) for rank in range(2)]
    for report in fewer:
        (tmp_path / strategy_name(report.rank)).write_text(report_text(report))
    assert reported_ranks(tmp_path) == list(range(RANKS))
    assert read_all(tmp_path) == fewer
    (tmp_path / strategy_name(1)).unlink()
    with pytest.raises(UnreadableError, match=r"reports of 2 ranks, but these ranks have no report: 1"):
        read_all(tmp_path)


def test_parts_of_all_ranks_make_up_each_tensor():
    reports = [report_of(rank) for rank in range(RANKS)]
    for number, operator in enumerate(tutorials_plan().operators):
        shape = GRAPH.by_name[operator.operator.name].shape
        outputs = [report.operators[number].output for report in reports]
        covered = {
            (row, column)
            for output in outputs
            for row in range(output.start[0], output.start[0] + output.size[0])
            for column in range(output.start[1], output.start[1] + output.size[1])
        } if shape else {()}  # fmt: skip
        assert len(covered) == (shape[0] * shape[1] if shape else 1)
