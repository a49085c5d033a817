"""An examination as people and programs read it."""

import json

import click

from launcher.cli.commands.doctor.doctor_report import is_sound, report_lines, report_to_json
from launcher.cli.text.style import ACTIVE, ERROR, GOOD, WARNING, Screen
from launcher.core.records import Cluster, Device, Server
from launcher.doctor.examine import Examination
from launcher.doctor.facts import Facts
from launcher.doctor.finding import Finding, Severity, Topic
from launcher.doctor.reach import Attempt, Outcome
from launcher.logs.terminal import without_colours

CLUSTER = Cluster(tuple(Server(name, (Device(0, index),)) for index, name in enumerate(("10.0.0.1", "10.0.0.2"))))
REACH = {
    0: (Attempt(1, "10.0.0.2", Outcome.REACHED, "10.0.0.2", 0.001),),
    1: (Attempt(0, "10.0.0.1", Outcome.REFUSED),),
}
BROKEN = Finding("unreachable", Topic.REACH, Severity.BREAKS, (0, 1), "10.0.0.2 does not reach 10.0.0.1", "open it")
RISK = Finding("few-inodes", Topic.FILES, Severity.RISKY, (1,), "server 10.0.0.2 can make 3 files")


def examination(**changes):
    facts = {0: Facts("h1", clock_offset_s=0.0), 1: Facts("h2", clock_offset_s=0.0)}
    return Examination(**{"cluster": CLUSTER, "facts": facts, "reach": REACH, "troubles": {}, **changes})


def test_each_server_has_a_row_and_each_topic_with_findings_a_column():
    assert list(report_lines(examination(), (BROKEN, RISK))) == [
        "SERVER    HOST  REACH   FILES",
        "10.0.0.1  h1    BREAKS  ok",
        "10.0.0.2  h2    BREAKS  risky",
        "ok everywhere: names, network, clock, software, table, limits, devices",
        "",
        "BREAKS: 10.0.0.2 does not reach 10.0.0.1 [unreachable]",
        "  hint: open it",
        "",
        "risky: server 10.0.0.2 can make 3 files [few-inodes]",
        "",
        "2 servers examined: 1 problem would break a run, 1 risk",
    ]
    assert not is_sound((BROKEN, RISK))
    assert is_sound((RISK,))


def test_colours_say_nothing_that_words_do_not():
    plain = "\n".join(report_lines(examination(), (BROKEN, RISK)))
    coloured = "\n".join(report_lines(examination(), (BROKEN, RISK), Screen(coloured=True)))
    assert without_colours(coloured) == plain
    for text, look in (("BREAKS", ERROR), ("risky", WARNING), ("ok", GOOD), ("hint", ACTIVE)):
        assert click.style(text, **look) in coloured
    narrow = without_colours("\n".join(report_lines(examination(), (BROKEN, RISK), Screen(coloured=True, columns=40))))
    assert narrow.split() == plain.split()
    assert max(map(len, narrow.splitlines())) <= 40
    evil = {0: Facts("\x1b]0;title\x07h1\x1b[2J"), 1: Facts("h2")}
    assert "\x1b" not in "\n".join(report_lines(examination(facts=evil), ()))


def test_nothing_found_says_so():
    note = Finding("no-accelerator", Topic.DEVICES, Severity.NOTE, (0, 1), "no accelerator is visible")
    assert list(report_lines(examination(), (note,)))[-1] == "2 servers examined: no problem would break a run"


def test_what_was_not_asked_is_not_told_to_be_well_and_who_did_not_answer_has_no_facts():
    silent = Finding("no-answer", Topic.ANSWER, Severity.BREAKS, (1,), "server 10.0.0.2: no answer")
    lines = list(report_lines(examination(facts={0: Facts("h1")}, reach={}), (silent,)))
    assert [line.split() for line in lines[:3]] == [
        ["SERVER", "HOST", "ANSWER"],
        ["10.0.0.1", "h1", "ok"],
        ["10.0.0.2", "-", "BREAKS"],
    ]
    assert lines[-1].startswith("1 of 2 servers examined:")
    assert lines[3] == "ok where servers answered: names, network, software, table, files, limits, devices"
    # A server with an unknown name was not tried.
    untried = {0: (Attempt(1, "10.0.0.2", Outcome.UNKNOWN_NAME),)}
    assert "reach" not in next(line for line in report_lines(examination(reach=untried), ()) if "ok" in line)
    # Nothing is well if nobody answers.
    silent = Finding("no-answer", Topic.ANSWER, Severity.BREAKS, (0, 1), "servers 10.0.0.1, 10.0.0.2: no answer")
    lines = list(report_lines(examination(facts={}, reach={}), (silent,)))
    assert not any("ok" in line for line in lines)
    assert lines[-1].startswith("0 of 2 servers examined:")


def test_json_holds_all_that_was_asked_and_found():
    written = json.loads(json.dumps(report_to_json(examination(), (BROKEN, RISK)), allow_nan=False))
    assert written["sound"] is False
    assert written["findings"][0] == {
        "code": "unreachable", "topic": "reach", "severity": "breaks", "servers": [0, 1],
        "message": "10.0.0.2 does not reach 10.0.0.1", "hint": "open it",
    }  # fmt: skip
    assert written["servers"][1]["facts"]["hostname"] == "h2"
    assert written["servers"][1]["reach"][0]["outcome"] == "refused"
    assert written["links"] is None
