"""`tlaunch table explain`: each code has a meaning that people can read."""

import json

import pytest

from launcher.cli.commands.table.explain import SECTIONS
from launcher.rank_table.catalogue import CATALOGUE, HCCL_CODES

CODES = dict(sorted(CATALOGUE.items()))


@pytest.fixture
def explain(launcher):
    return lambda *arguments, **options: launcher.call("table", "explain", *arguments, **options).stdout


def test_every_code_is_explained(explain):
    assert {"RT101", "RT202", "RT301", "RT402"} <= set(CODES)
    for entry in CODES.values():
        assert entry.code[:3] in SECTIONS
        assert entry.title
        assert entry.explanation not in {"", entry.title}
        assert entry.hccl_code is None or entry.hccl_code in HCCL_CODES
    for code, entry in HCCL_CODES.items():
        told = explain(code)
        assert told.startswith(f"{code}: {entry.title}\n")
        assert " ".join(entry.explanation.split()) in " ".join(told.split())


def test_what_is_said_of_codes(launcher, snapshot):
    assert launcher.scene("table explain rt301 RT301 RT302", "table explain EI0014", code=0) == snapshot


def test_paragraph_is_as_wide_as_the_terminal(explain):
    for columns in (40, 70, 300):
        longest = max(map(len, explain("RT301", env={"COLUMNS": str(columns)}).splitlines()[3:]))
        assert min(columns, 100) - 20 < longest <= min(columns, 100)


def test_a_code_of_hccl_gives_all_that_it_stands_for(explain):
    listed = [line.split()[0] for line in explain("EI0017").splitlines() if line.startswith("  ")]
    assert listed == [code for code, entry in CODES.items() if entry.hccl_code == "EI0017"]
    first, *others = json.loads(explain("--json", "ei0005"))
    assert (first["code"], first["severity"]) == ("EI0005", None)
    assert {entry["hccl_code"] for entry in others} <= {"EI0005"}


def test_overview_lists_all_codes_by_hundreds(explain):
    lines = explain().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(CODES)
    assert [line for line in lines if line.startswith("RT")] == [
        f"{hundred}xx {title}" for hundred, title in SECTIONS.items() if any(code[:3] == hundred for code in CODES)
    ]
    told = json.loads(explain("--json"))
    assert [entry["code"] for entry in told] == list(CODES)
    assert {"severity", "title", "hccl_code", "explanation"} <= set(told[0])


def test_unknown_codes(launcher, snapshot):
    codes = ("RT31", "RT310", "TR301", "EI0018", "RT999", "999", "nonsense")
    assert launcher.refused(2, *(f"table explain {code}" for code in codes)) == snapshot
