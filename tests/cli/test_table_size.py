"""--max-table-size: the same limit, with the same words, wherever a rank table is read."""

from pathlib import Path

import pytest

READERS = {
    "validate": "validate {}",
    "show": "table show {}",
    "diff": "table diff {0} {0}",
    "merge": "table merge {}",
    "convert": "table convert --to v1.2 {}",
    "fix": "table fix {}",
    "run": "run --dry-run --rank-table {}",
    "render": "render bash --rank-table {} -- true",
    "explain": "explain --rank-table {} -- true",
    "doctor": "doctor --rank-table {}",
}
LIMIT = {"TLAUNCH_MAX_TABLE_SIZE": "2K"}


def test_every_command_that_reads_a_table_keeps_to_the_limit(launcher, snapshot):
    launcher.write("large.json", " " * 5000)
    told = {name: launcher.refused(2, typed.format("large.json"), env=LIMIT) for name, typed in READERS.items()}
    assert {text.partition("\n")[2] for text in told.values()} == snapshot


@pytest.mark.parametrize("name", [name for name in READERS if name not in {"doctor", "explain"}])
def test_the_option_lifts_the_limit(name, launcher, sample_tables):
    launcher.write("t.json", (sample_tables / "rank_table_2pcs.json").read_text() + " " * 5000)
    words = READERS[name].format("t.json").split()
    at = 2 if words[0] in {"table", "render"} else 1
    launcher.call(*words[:at], "--max-table-size", "10K", *words[at:], env=LIMIT, code=0)


def test_a_wrong_value_is_told_of_where_it_was_given(launcher, snapshot):
    told = [launcher.refused(2, f"validate --max-table-size {value} t.json") for value in ("100", "more")]
    told += [launcher.refused(2, "validate t.json", env={"TLAUNCH_MAX_TABLE_SIZE": value}) for value in ("100", "much")]
    assert "\n\n".join(told) == snapshot


def test_stdin_and_devices_end_at_the_limit(launcher, snapshot):
    commands = ("validate --max-table-size 1M -", "validate --max-table-size 1M /dev/zero")
    with Path("/dev/zero").open("rb") as zeros:
        assert launcher.refused(2, *commands, stdin=zeros) == snapshot


def test_large_files_of_others_in_a_directory_are_passed_over(launcher, sample_tables):
    """A directory may hold data beside its tables; what reads like a table is not passed over for its size."""
    table = (sample_tables / "rank_table_2pcs.json").read_text()
    launcher.write("tables/good.json", table)
    launcher.write("tables/data.json", "[1, 2, 3]" + " " * 5000)
    done = launcher.call("validate", "--max-table-size", "2K", "tables")
    assert (done.returncode, "tables/data.json" in done.stderr) == (0, True)
    launcher.write("tables/large.json", table + " " * 5000)
    assert launcher.call("validate", "--max-table-size", "2K", "tables").returncode == 2
