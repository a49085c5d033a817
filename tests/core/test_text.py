"""Words that are offered for one that is not known."""

import pytest

from launcher.core.text import did_you_mean, near, slips

OPTIONS = [
    "--devices", "--engine", "--server", "--set", "--rank-table", "--grace", "--kill", "--until", "--hang-timeout",
]  # fmt: skip


@pytest.mark.parametrize(("typed", "meant"), [
    ("--device --devises", ("--devices",)),
    ("--rank-tabel --rank_table --RANK-TABLE", ("--rank-table",)),
    ("--hang", ("--hang-timeout",)),
    ("--quiet --all --tail --se --verbose -q --", ()),
])  # fmt: skip
def test_a_slip_and_an_unfinished_word_are_understood(typed, meant):
    assert {near(each, OPTIONS) for each in typed.split()} == {meant}
    assert near("", OPTIONS) == ()


def test_the_best_comes_first_and_only_so_many():
    known = ("--steps", "--stops", "--step", "--stop", "--setup")
    assert near("--stepp", known) == ("--step", "--steps")
    assert near("--stepp", known, limit=1) == ("--step",)


@pytest.mark.parametrize(
    ("one", "other", "count"),
    [("", "", 0), ("run", "", 3), ("run", "runn", 1), ("rnu", "run", 1), ("kitten", "sitting", 3), ("ab", "ba", 1)],
)
def test_slips_are_counted(one, other, count):
    assert slips(one, other) == slips(other, one) == count


def test_the_question_names_all_that_may_be_meant():
    assert did_you_mean(["a", "b"]) == "did you mean a or b?"
    assert did_you_mean(()) is None
