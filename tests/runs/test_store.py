"""Find a run by name, prefix or directory."""

import os
import shutil
import socket

import pytest

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.run_dir import RunDir
from launcher.runs.registry import FORGOTTEN_S, register, registered
from launcher.runs.store import find_run, run_names


def begin(runs_dir, *names):
    for time_s, name in enumerate(names):
        (runs_dir / name).mkdir(parents=True, exist_ok=True)
        (runs_dir / name / "run.json").touch()
        os.utime(runs_dir / name / "run.json", (time_s, time_s))


@pytest.fixture
def runs_dir(tmp_path):
    begin(tmp_path / "runs", "20260101-000000-a", "20260102-000000-b")
    (tmp_path / "runs" / "latest").symlink_to("20260101-000000-a")
    (tmp_path / "runs" / "no-run").mkdir()
    return tmp_path / "runs"


def test_a_name_and_a_directory_mean_the_same(runs_dir, monkeypatch):
    expected = runs_dir / "20260102-000000-b"
    monkeypatch.chdir(runs_dir)
    for reference in (expected.name, str(expected), f"./{expected.name}", f"{expected}/"):
        assert find_run(runs_dir, reference).root == expected


@pytest.mark.parametrize("reference", ["missing", "no-run"])
def test_what_is_no_run_is_refused_with_those_there_are(runs_dir, reference):
    """A wrong name, or a directory without run.json: the hint has those that began last, whatever they are called."""
    begin(runs_dir, "20260102-000000-b", "again", "20260101-000000-a")
    with pytest.raises(UnreadableError) as caught:
        find_run(runs_dir, reference)
    assert caught.value.hint.endswith("runs: 20260101-000000-a, again, 20260102-000000-b")


@pytest.mark.parametrize(("typed", "meant"), [("nigth", "night"), ("20260102-000000-nihgt", "20260102-000000-night")])
def test_a_mistyped_name_gets_a_suggestion(runs_dir, typed, meant):
    begin(runs_dir, "20260101-000000-day", "20260102-000000-night")
    with pytest.raises(UnreadableError) as caught:
        find_run(runs_dir, typed)
    assert caught.value.hint == f"did you mean {meant}?"


def told_by(runs_dir, reference):
    """Return the run's name and the notes about the choice that the user gets."""
    told = []
    return find_run(runs_dir, reference, told.append).root.name, told


@pytest.mark.parametrize("target", ["no-run", "gone", None])
def test_where_latest_is_no_run_it_is_the_newest_that_is_one(runs_dir, target):
    """With a note where a link names something else, as of a job file; a file system without links needs none."""
    (runs_dir / "latest").unlink()
    if target:
        (runs_dir / "latest").symlink_to(target)
    begin(runs_dir, "20260101-000000-a", "20260102-000000-b")
    for reference in (None, "latest"):
        name, told = told_by(runs_dir, reference)
        assert name == "20260102-000000-b"
        assert [f"runs/{target}" in note for note in told] == [True] * bool(target)
    assert told_by(runs_dir, "latest~1")[0] == "20260101-000000-a"


def test_where_nothing_is_a_run_latest_says_why(runs_dir):
    """What it leads to, and where runs may be."""
    for name in ("20260101-000000-a", "20260102-000000-b"):
        (runs_dir / name / "run.json").unlink()
    with pytest.raises(UnreadableError, match=r"latest: .*/20260101-000000-a has no run\.json") as caught:
        find_run(runs_dir, None)
    assert "contains no runs" in caught.value.hint


def test_a_job_files_directory_of_former_times_is_told_from_others(runs_dir):
    (runs_dir / "no-run" / "device0").mkdir()
    with pytest.raises(UnreadableError, match=r"no run\.json \(a job file of an older tlaunch makes none\)"):
        find_run(runs_dir, "no-run")


def test_runs_before_the_latest_are_counted_by_their_beginnings(runs_dir):
    begin(runs_dir, "20260102-000000-b", "other", "20260101-000000-a", "newer")
    found = [find_run(runs_dir, reference).root.name for reference in (None, "latest~0", "latest~1", "latest~2")]
    assert found == ["20260101-000000-a"] * 2 + ["other", "20260102-000000-b"]
    with pytest.raises(UnreadableError, match=r"latest~3 .* is latest~2"):
        find_run(runs_dir, "latest~3")


@pytest.mark.parametrize(("reference", "expected"), [
    ("train", "20260105-000000-train"), ("train-2", "20260104-000000-train-2"), ("a", "20260101-000000-a"),
    ("20260102", "20260102-000000-b"), ("20260103-0", "20260103-000000-long-name"),
    ("long", "20260103-000000-long-name"), ("job-4", "job-4711"),
])  # fmt: skip
def test_a_name_given_to_it_or_a_unique_beginning_mean_a_run(runs_dir, reference, expected):
    """Of several runs that were given a name, one of them as the second in one second, the newest."""
    begin(
        runs_dir, "20260101-000000-a", "20260102-000000-b", "20260103-000000-long-name", "20260104-000000-train",
        "20260104-000000-train-2", "20260105-000000-train", "job-4711",
    )  # fmt: skip
    name, told = told_by(runs_dir, reference)
    assert name == expected
    assert len(told) == (reference == "train")
    if told:
        assert told[0].startswith("the newest of 3 runs named train ")


def test_an_empty_reference_is_not_the_run_in_which_somebody_stands(runs_dir, monkeypatch):
    """What is to be stopped, for instance, was in a variable that is not set."""
    begin(runs_dir, "20260101-000000-a")
    monkeypatch.chdir(runs_dir / "20260101-000000-a")
    with pytest.raises(UsageError):
        find_run(runs_dir, "")


@pytest.mark.parametrize("reference", ["2026010", "20", "tr", "other", "a/b", "../runs"])
def test_what_several_runs_or_none_are_called_is_refused(runs_dir, reference):
    """With the names of those that may have been meant, the newest first."""
    begin(runs_dir, "20260101-000000-a", "20260102-000000-b", "20260103-000000-tree", "20260104-000000-train")
    with pytest.raises((UsageError, UnreadableError)) as caught:
        find_run(runs_dir, reference)
    assert caught.value.exit_code == 2
    if isinstance(caught.value, UsageError):
        assert "20260104-000000-train, 20260103-000000-tree" in caught.value.message


def test_an_empty_or_missing_directory_has_no_latest(tmp_path):
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UnreadableError, match="no readable run found"):
            find_run(directory, None)


def test_a_name_that_no_file_can_have_is_no_run(runs_dir):
    long = "a" * 300
    for directory, reference in ((runs_dir, long), (runs_dir / long, "b"), (runs_dir / long, None)):
        with pytest.raises(UnreadableError):
            find_run(directory, reference)
    assert run_names(runs_dir / long) == ()
    assert run_names(runs_dir) == ("20260101-000000-a", "20260102-000000-b")


def test_where_only_one_servers_files_are_they_are_the_run(runs_dir):
    """On a server that shares no disk with the head; as soon as the head's own are there, these count."""
    root = runs_dir / "20260102-000000-b"
    for part in ("server10", "server2", "serverX", "server1x", "server01", "server²", f"server{'9' * 200}"):
        (root / part).mkdir()
        (root / part / "events.jsonl").touch()
    assert find_run(runs_dir, root.name) == RunDir(root, 2)
    (root / "events.jsonl").touch()
    assert find_run(runs_dir, root.name) == RunDir(root)


# --- directories of runs ---


@pytest.fixture
def links(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "tlaunch" / "runs"


def made(path):
    path.mkdir(parents=True)
    return path


def test_directories_are_found_until_they_are_gone(links, tmp_path):
    one, two = made(tmp_path / "one" / "runs"), made(tmp_path / "two" / "runs")
    (tmp_path / "link").symlink_to(one)
    for path in (two, one, tmp_path / "link", one):
        register(path)
    assert registered() == (one, two)
    assert len(list(links.iterdir())) == 2
    shutil.rmtree(one)
    assert registered() == (two,)
    assert [link.readlink() for link in links.iterdir()] == [two]


def test_what_is_hidden_is_not_noted(links, tmp_path):
    register(made(tmp_path / ".doctor-1"))
    assert not links.exists()


def test_what_another_machine_alone_may_see_is_kept_for_a_while(links, tmp_path):
    made(links)
    for name, age_s in (("new", 0), ("old", FORGOTTEN_S + 60)):
        link = links / f"{name}.not-{socket.gethostname()}"
        link.symlink_to(tmp_path / name)
        then = link.lstat().st_mtime - age_s
        os.utime(link, (then, then), follow_symlinks=False)
    (links / "strange").write_text("?")
    assert registered() == ()
    assert {path.name.partition(".")[0] for path in links.iterdir()} == {"new", "strange"}


def test_names_of_many_machines_hide_no_directory(links, tmp_path):
    """As of a cluster whose machines have new names each time: their links go when they are old, but for a directory's last."""
    shared, cluster_only = made(tmp_path / "shared"), made(tmp_path / "cluster")
    register(shared)
    (own,) = links.iterdir()
    places = {own.name.partition(".")[0]: shared, "cluster": cluster_only}
    for number in range(1500):
        for place, target in places.items():
            link = links / f"{place}.pod-{number}"
            link.symlink_to(target)
            if number % 2:
                then = link.lstat().st_mtime - FORGOTTEN_S - 60
                os.utime(link, (then, then), follow_symlinks=False)
    others = tuple(made(tmp_path / f"other-{number}") for number in range(5))
    for path in others:
        register(path)
    assert registered() == (cluster_only, *others, shared)
    left = {path.name for path in links.iterdir()}
    assert own.name in left
    assert {f"{place}.pod-{number}" for place in places for number in range(0, 1500, 2)} <= left
    assert len(left) <= 1500 + 1 + 5 + 1  # the link that the second place was found by may be an old one


def test_a_link_is_as_old_as_its_last_use(links, tmp_path):
    directory = made(tmp_path / "runs")
    register(directory)
    (link,) = links.iterdir()
    os.utime(link, (1, 1), follow_symlinks=False)
    register(directory)
    assert link.lstat().st_mtime > 1


@pytest.mark.parametrize("base", ["/dev/null/none", "relative", "/proc/none"])
def test_a_home_that_cannot_be_written_is_no_error(base, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", base)
    monkeypatch.chdir(tmp_path)
    register(made(tmp_path / "runs"))
    assert registered() == ()
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_without_a_home_nothing_is_noted(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "not-a-path")
    register(made(tmp_path / "runs"))
    assert registered() == ()
