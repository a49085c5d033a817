"""A rank's whole environment and its log."""

from hypothesis import given
from hypothesis import strategies as st

from launcher.supervise.spawn import overlaid, render_environment, write_environment


def test_changes_are_laid_over_and_none_takes_away():
    """New values win, None removes, the rest is inherited."""
    assert overlaid({"A": "1", "B": "2", "C": "3"}, {"B": "x", "C": None, "D": None}) == {"A": "1", "B": "x"}


NAMES = st.text("ABCDEFGHIJKLM_", min_size=1, max_size=8).map("V_{}".format)
VALUES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(st.dictionaries(NAMES, VALUES))
def test_one_line_per_variable_whatever_it_holds(environment):
    """Any value stays on its line, and unescaping the line gives it back."""
    lines = render_environment(environment).split("\n")[:-1]
    assert [line.partition("=")[0] for line in lines] == sorted(environment)
    for line in lines:
        name, _, shown = line.partition("=")
        if shown != environment[name] and "://" not in environment[name]:
            unescaped = shown.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
            assert unescaped == environment[name]


def test_bytes_that_are_no_text_survive(tmp_path):
    """A value that is not UTF-8 is written as the bytes it was."""
    write_environment(tmp_path / "env.log", {"RAW": b"\xff".decode("utf-8", "surrogateescape")})
    assert (tmp_path / "env.log").read_bytes() == b"RAW=\xff\n"
