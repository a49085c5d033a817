"""`tlaunch table explain`: each code has a meaning that people can read."""

import json

import pytest

from launcher.cli.commands.table.explain import SECTIONS, _catalogue
from launcher.rank_table.hccl_codes import HCCL_CODES


@pytest.mark.parametrize("code", _catalogue())
def test_every_code_is_explained(code):
    """Each code of the catalogue belongs to a titled hundred, and has a title and a paragraph."""
    entry = _catalogue()[code]
    assert entry.code[:3] in SECTIONS
    assert entry.title
    assert entry.explanation not in {"", entry.title}


def test_entry_has_title_severity_and_hccl_code(launcher):
    """One code gives its title, what HCCL calls it, and the paragraph."""
    done = launcher.run("table", "explain", "RT301")
    entry = _catalogue()["RT301"]
    head, severity, empty, *paragraph = done.stdout.splitlines()
    assert done.returncode == 0
    assert head == f"RT301: {entry.title}"
    assert severity == f"error; HCCL reports {entry.hccl_code}"
    assert empty == ""
    assert " ".join(paragraph) == entry.explanation


@pytest.mark.parametrize("columns", [40, 70, 300])
def test_paragraph_is_as_wide_as_the_terminal(launcher, columns):
    """Lines fit into the terminal, and are never too long to read."""
    done = launcher.run("table", "explain", "RT301", env={"COLUMNS": str(columns)})
    longest = max(map(len, done.stdout.splitlines()[3:]))
    assert min(columns, 100) - 20 < longest <= min(columns, 100)


def test_codes_may_be_written_small_and_repeated(launcher):
    """Lower case is understood, and each code comes once."""
    done = launcher.run("table", "explain", "rt301", "RT301", "RT302")
    assert [line[:5] for line in done.stdout.splitlines() if line.startswith("RT")] == ["RT301", "RT302"]


def test_a_code_of_hccl_gives_all_that_it_stands_for(launcher):
    """Who comes with an error of HCCL finds the rules behind it."""
    lines = launcher.run("table", "explain", "EI0017").stdout.splitlines()
    expected = [code for code, entry in _catalogue().items() if entry.hccl_code == "EI0017"]
    assert [line.split()[0] for line in lines if line.startswith("  ")] == expected
    assert lines[0].startswith("EI0017: ")
    assert "tlaunch validate FILE" in lines[-1]


def test_a_code_of_hccl_is_explained_with_its_versions(launcher):
    """EI0014 is a code of the newer versions, and says what the older ones call it."""
    told = launcher.run("table", "explain", "EI0014").stdout
    assert "Before 8.3 such faults were EI0004" in " ".join(told.split())


@pytest.mark.parametrize("code", HCCL_CODES)
def test_codes_without_a_rule_are_explained_too(launcher, code):
    """Whoever comes with an error of HCCL is told what it means, whether a table causes it or not."""
    done = launcher.run("table", "explain", code)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{code}: {HCCL_CODES[code].title}\n")
    assert " ".join(HCCL_CODES[code].explanation.split()) in " ".join(done.stdout.split())


def test_every_code_that_rules_name_is_explained():
    """No rule refers to an error of HCCL that `explain` does not know."""
    assert {entry.hccl_code for entry in _catalogue().values() if entry.hccl_code} <= HCCL_CODES.keys()


def test_json_of_a_hccl_code_starts_with_its_meaning(launcher):
    """The code itself comes first, without a severity, then those it stands for."""
    first, *others = json.loads(launcher.run("table", "explain", "--json", "ei0005").stdout)
    assert (first["code"], first["severity"]) == ("EI0005", None)
    assert "tlaunch table diff" in first["explanation"]
    assert {entry["hccl_code"] for entry in others} <= {"EI0005"}


def test_overview_lists_all_codes_by_hundreds(launcher):
    """Without CODE there is one line per code, under its hundred's title, in order."""
    lines = launcher.run("table", "explain").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == list(_catalogue())
    assert {"RT101", "RT202", "RT301", "RT402"} <= set(_catalogue())
    assert [line for line in lines if line.startswith("RT")] == [
        f"{hundred}xx {title}"
        for hundred, title in SECTIONS.items()
        if any(code[:3] == hundred for code in _catalogue())
    ]


@pytest.mark.parametrize(("code", "near"), [("RT31", "RT311"), ("TR301", "RT301"), ("EI0018", "EI0017")])
def test_unknown_code_has_neighbours(launcher, code, near):
    """A code that does not exist ends with 2, and names codes that do."""
    done = launcher.run("table", "explain", code)
    assert (done.returncode, done.stdout) == (2, "")
    assert code in done.stderr
    assert near in done.stderr


@pytest.mark.parametrize("code", ["RT999", "999", "nonsense"])
def test_nothing_is_near_a_code_far_from_all(launcher, code):
    """The hint is then where all codes are listed."""
    done = launcher.run("table", "explain", code)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("hint: `tlaunch table explain` lists all codes\n")


def test_the_nearest_numbers_come_first(launcher):
    assert "hint: near it: RT311, RT312, RT313, " in launcher.run("table", "explain", "RT310").stderr


def test_json_has_one_element_per_code(launcher):
    """The whole catalogue for programs."""
    told = json.loads(launcher.run("table", "explain", "--json").stdout)
    assert [entry["code"] for entry in told] == list(_catalogue())
    assert {"severity", "title", "hccl_code", "explanation"} <= set(told[0])
