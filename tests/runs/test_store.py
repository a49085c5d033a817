"""Finding a run again."""

import os

import pytest

from launcher.core.errors import UnreadableError
from launcher.core.run_dir import RunDir
from launcher.runs.store import find_run, run_names


@pytest.fixture
def runs_dir(tmp_path):
    for name in ("20260101-000000-a", "20260102-000000-b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "run.json").touch()
    (tmp_path / "runs" / "latest").symlink_to("20260101-000000-a")
    (tmp_path / "runs" / "no-run").mkdir()
    return tmp_path / "runs"


def test_nothing_means_the_latest(runs_dir):
    """The link decides, not the order of names."""
    assert find_run(runs_dir, None).root == runs_dir / "20260101-000000-a"


def test_a_name_and_a_directory_mean_the_same(runs_dir, monkeypatch):
    """A run's name in the runs directory, a path, and a path from where one stands."""
    expected = runs_dir / "20260102-000000-b"
    monkeypatch.chdir(runs_dir)
    for reference in (expected.name, str(expected), f"./{expected.name}", f"{expected}/"):
        assert find_run(runs_dir, reference).root == expected


def test_what_is_no_run_is_refused_with_those_there_are(runs_dir):
    """A wrong name, or a directory without run.json, ends with the newest names as a hint."""
    for reference in ("missing", "no-run"):
        with pytest.raises(UnreadableError) as caught:
            find_run(runs_dir, reference)
        assert "20260102-000000-b, 20260101-000000-a" in caught.value.hint


def test_the_newest_are_those_that_began_last(runs_dir):
    """Whatever they are called."""
    (runs_dir / "again").mkdir()
    for time_s, name in enumerate(("20260102-000000-b", "again", "20260101-000000-a")):
        (runs_dir / name / "run.json").touch()
        os.utime(runs_dir / name / "run.json", (time_s, time_s))
    with pytest.raises(UnreadableError) as caught:
        find_run(runs_dir, "missing")
    assert caught.value.hint.endswith("runs: 20260101-000000-a, again, 20260102-000000-b")


def test_a_latest_that_tlaunch_did_not_start_is_no_run(runs_dir):
    """A rendered run.sh makes the link, and no run.json."""
    (runs_dir / "latest").unlink()
    (runs_dir / "latest").symlink_to("no-run")
    with pytest.raises(UnreadableError, match=r"latest: .*no-run has no run\.json: a job file") as caught:
        find_run(runs_dir, None)
    assert "20260102-000000-b, 20260101-000000-a" in caught.value.hint


def test_an_empty_or_missing_directory_has_no_latest(tmp_path):
    """There is nothing to find where nothing ran."""
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UnreadableError, match="no latest run"):
            find_run(directory, None)


def test_names_are_in_order_of_time_and_only_runs(runs_dir):
    """The link and other directories are left out."""
    assert run_names(runs_dir) == ("20260101-000000-a", "20260102-000000-b")


def test_a_name_that_no_file_can_have_is_no_run(runs_dir):
    """Nor is a directory of such a name."""
    for directory, reference in ((runs_dir, "a" * 300), (runs_dir / ("a" * 300), "b"), (runs_dir / ("a" * 300), None)):
        with pytest.raises(UnreadableError):
            find_run(directory, reference)
    assert run_names(runs_dir / ("a" * 300)) == ()


def test_where_only_one_servers_files_are_they_are_the_run(runs_dir):
    """On a server that shares no disk with the head; as soon as the head's own are there, these count."""
    root = runs_dir / "20260102-000000-b"
    for part in ("server10", "server2", "serverX"):
        (root / part).mkdir()
        (root / part / "events.jsonl").touch()
    assert find_run(runs_dir, root.name) == RunDir(root, 2)
    (root / "events.jsonl").touch()
    assert find_run(runs_dir, root.name) == RunDir(root)
