"""Names that hold line ends: nothing that a person typed or named can look like a line of tlaunch's own."""

import pytest

from .transcript import typed_lines

NAME = "no\nerror: forged\x1b[2J.json"


TYPED = """
validate @; validate --strict !; table show @; table diff @ @; table fix @; table merge @; table convert --to v1.0 @
table explain @; table generate --hccn-conf @; table generate @; run --rank-table @; run --config @; run --name @
run --devices @; run -- @; render bash --rank-table @; logs @; status @; stop @; ps --runs-dir @; @; doctor --rank-table @
"""


@pytest.mark.parametrize("typed", typed_lines(TYPED))
def test_no_name_makes_a_line_of_its_own(typed, launcher):
    launcher.write("wrong\nerror: forged.json", "{")
    names = {"@": NAME, "!": "wrong\nerror: forged.json"}
    done = launcher.call(*(names.get(word, word) for word in typed.split()))
    told = done.stderr + done.stdout
    assert "forged" in told.lower()
    assert not [line for line in told.splitlines() if line.lower().startswith("error: forged")]
    assert "\x1b" not in told
