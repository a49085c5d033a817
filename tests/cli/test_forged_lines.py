"""Names that hold line ends: nothing that a person typed or named can look like a line of tlaunch's own."""

from __future__ import annotations

import pytest

NAME = "no\nerror: forged\x1b[2J.json"


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", NAME),
        ("validate", "--strict", "wrong\nerror: forged.json"),
        ("table", "show", NAME),
        ("table", "diff", NAME, NAME),
        ("table", "fix", NAME),
        ("table", "merge", NAME),
        ("table", "convert", "--to", "v1.0", NAME),
        ("table", "explain", NAME),
        ("table", "generate", "--hccn-conf", NAME),
        ("table", "generate", NAME),
        ("run", "--rank-table", NAME),
        ("run", "--config", NAME),
        ("run", "--name", NAME),
        ("run", "--devices", NAME),
        ("run", "--", NAME),
        ("doctor", "--rank-table", NAME),
        ("render", "bash", "--rank-table", NAME),
        ("logs", NAME),
        ("status", NAME),
        ("stop", NAME),
        ("ps", "--runs-dir", NAME),
        (NAME,),
    ],
)
def test_no_name_makes_a_line_of_its_own(arguments, launcher):
    """Control characters of a name are shown as what they are, on the line that shows the name."""
    (launcher.directory / "wrong\nerror: forged.json").write_text("{")
    done = launcher.run(*arguments)
    told = done.stderr + done.stdout
    assert "forged" in told.lower()
    assert not [line for line in told.splitlines() if line.lower().startswith("error: forged")]
    assert "\x1b" not in told
