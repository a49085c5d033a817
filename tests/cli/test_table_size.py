"""--max-table-size: the same limit, with the same words, wherever a rank table is read."""

from __future__ import annotations

from pathlib import Path

import pytest

READERS = {
    "validate": ("validate", "{}"),
    "show": ("table", "show", "{}"),
    "diff": ("table", "diff", "{}", "{}"),
    "merge": ("table", "merge", "{}"),
    "convert": ("table", "convert", "--to", "v1.2", "{}"),
    "fix": ("table", "fix", "{}"),
    "run": ("run", "--dry-run", "--rank-table", "{}"),
    "explain": ("explain", "--rank-table", "{}", "--", "true"),
    "render": ("render", "bash", "--rank-table", "{}", "--", "true"),
    "doctor": ("doctor", "--rank-table", "{}"),
}


@pytest.mark.parametrize("name", READERS)
def test_every_command_that_reads_a_table_keeps_to_the_limit(name, launcher):
    """A table that is too large is no fault of the table: exit code 2, its size, the limit, and how to lift it."""
    (launcher.directory / "large.json").write_text(" " * 5000)
    arguments = [word.format("large.json") for word in READERS[name]]
    done = launcher.run(*arguments, env={"TLAUNCH_MAX_TABLE_SIZE": "2K"})
    assert done.returncode == 2
    assert "large.json has 5,000 bytes, and no table of more than 2,048 bytes is read" in done.stderr
    assert "--max-table-size" in done.stderr


@pytest.mark.parametrize("name", [name for name in READERS if name not in {"doctor", "explain"}])
def test_the_option_lifts_the_limit(name, launcher, sample_tables):
    """What was typed counts more than the environment."""
    (launcher.directory / "t.json").write_text((sample_tables / "rank_table_2pcs.json").read_text() + " " * 5000)
    words = [word.format("t.json") for word in READERS[name]]
    at = 2 if words[0] in {"table", "render"} else 1
    lifted = launcher.run(*words[:at], "--max-table-size", "10K", *words[at:], env={"TLAUNCH_MAX_TABLE_SIZE": "2K"})
    assert (lifted.returncode, lifted.stderr if lifted.returncode else "") == (0, "")


def test_a_wrong_value_is_told_of_where_it_was_given(launcher):
    """Who typed no option is told of the variable."""
    typed = launcher.run("validate", "--max-table-size", "100", "t.json")
    inherited = launcher.run("validate", "t.json", env={"TLAUNCH_MAX_TABLE_SIZE": "100"})
    for done, name in ((typed, "--max-table-size"), (inherited, "TLAUNCH_MAX_TABLE_SIZE")):
        assert (done.returncode, done.stderr) == (2, f"error: {name}: 100 is too small: at least 1K\n")


def test_stdin_and_devices_end_at_the_limit(launcher):
    """What has no size is read as far as a table may be long."""
    with Path("/dev/zero").open("rb") as zeros:
        piped = launcher.run("validate", "--max-table-size", "1M", "-", stdin=zeros)
    named = launcher.run("validate", "--max-table-size", "1M", "/dev/zero")
    for done, name in ((piped, "stdin"), (named, "/dev/zero")):
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {name} gives more than 1 MiB")


def test_large_files_of_others_in_a_directory_are_passed_over(launcher, sample_tables):
    """A directory may hold data beside its tables; what reads like a table is not passed over for its size."""
    tables = launcher.directory / "tables"
    tables.mkdir()
    (tables / "good.json").write_text((sample_tables / "rank_table_2pcs.json").read_text())
    (tables / "data.json").write_text("[1, 2, 3]" + " " * 5000)
    done = launcher.run("validate", "--max-table-size", "2K", "tables")
    assert (done.returncode, done.stderr) == (0, "1 other *.json file is no rank table: tables/data.json\n")
    (tables / "large.json").write_text((sample_tables / "rank_table_2pcs.json").read_text() + " " * 5000)
    assert launcher.run("validate", "--max-table-size", "2K", "tables").returncode == 2
