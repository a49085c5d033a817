"""A run's directory is made whole or not at all."""

import json
import os
import stat
from pathlib import Path

import pytest

from launcher.core.errors import UnreadableError
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec
from launcher.runs.create import create_run, free_name


def specify(runs_dir, ranks=2):
    def spec(name):
        return RunSpec(
            name=name,
            run_dir=runs_dir / name,
            cluster=Cluster.local(ranks),
            layout=Layout(dp=ranks),
            ranks=tuple(
                RankSpec(rank, rank, "127.0.0.1", 0, rank, ("true",), {"API_TOKEN": "s3cr3t", "GONE": None})
                for rank in range(ranks)
            ),
            cwd=Path("/"),
            master_addr="127.0.0.1",
            master_port=1,
        )

    return spec


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_everything_is_there_at_once(tmp_path):
    """Device directories, run.json with secrets masked, extra files and the `latest` link."""
    spec = create_run(tmp_path, "one", specify(tmp_path), {"rank_table.json": "{}\n"})
    assert names(spec.run_dir) == ["device0", "device1", "rank_table.json", "run.json"]
    assert (tmp_path / "latest").readlink() == Path("one")
    record = json.loads((spec.run_dir / "run.json").read_text())
    assert record["ranks"][1]["env"] == {"API_TOKEN": "********", "GONE": None}
    assert record["name"] == "one"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)], ids=["open", "closed"])
def test_the_record_may_be_read_by_whoever_may_read_the_logs(tmp_path, umask, mode):
    """As the umask says: a colleague who can read what ranks write can ask how the run stands."""
    former = os.umask(umask)
    try:
        spec = create_run(tmp_path, "one", specify(tmp_path), {"rank_table.json": "{}\n"})
    finally:
        os.umask(former)
    assert stat.S_IMODE((spec.run_dir / "run.json").stat().st_mode) == mode
    assert stat.S_IMODE((spec.run_dir / "rank_table.json").stat().st_mode) == mode


def test_taken_names_are_counted_up(tmp_path):
    """Directories, files and dangling links all take a name."""
    (tmp_path / "one").mkdir()
    (tmp_path / "one-2").touch()
    (tmp_path / "one-3").symlink_to("nowhere")
    assert free_name(tmp_path, "one") == "one-4"
    assert create_run(tmp_path, "one", specify(tmp_path)).name == "one-4"


@pytest.mark.parametrize("rival", ["directory", "file"])
def test_a_name_taken_in_between_is_no_trouble(tmp_path, rival):
    """Someone who takes the name after it was found free costs another try, not a run."""
    asked = []

    def slow(name):
        if not asked:
            (tmp_path / name).mkdir() if rival == "directory" else (tmp_path / name).touch()
            if rival == "directory":
                (tmp_path / name / "theirs").touch()
        asked.append(name)
        return specify(tmp_path)(name)

    assert create_run(tmp_path, "one", slow).name == "one-2"
    assert asked == ["one", "one-2"]
    assert names(tmp_path) == ["latest", "one", "one-2"]


def test_eight_at_once_get_eight_names(tmp_path):
    """Processes that make runs of one name at the same time never share a directory."""
    children = []
    for _ in range(8):
        child = os.fork()
        if child == 0:
            create_run(tmp_path, "same", specify(tmp_path))
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 8
    made = [path for path in tmp_path.iterdir() if not path.is_symlink()]
    assert len(made) == 8
    assert all(json.loads((path / "run.json").read_text())["name"] == path.name for path in made)


def test_failure_takes_back_what_was_made_for_it(tmp_path):
    """Parents that had to be made for the runs directory go again when the run cannot be made."""
    runs_dir = tmp_path / "a" / "b"
    with pytest.raises(UnreadableError) as caught:
        create_run(runs_dir, "one", specify(runs_dir), {"missing/directory.txt": "x"})
    assert "no run directory can be made here: No such file or directory" in caught.value.message
    assert list(tmp_path.iterdir()) == []


def test_failure_leaves_an_older_directory_alone(tmp_path):
    """A runs directory that was there before stays, without a trace of the failure."""
    (tmp_path / "old").mkdir()
    with pytest.raises(UnreadableError):
        create_run(tmp_path, "one", specify(tmp_path), {"missing/directory.txt": "x"})
    assert names(tmp_path) == ["old"]


def test_a_directory_called_latest_is_left_alone(tmp_path):
    """If `latest` cannot become a link, the run is made all the same."""
    (tmp_path / "latest").mkdir()
    assert create_run(tmp_path, "one", specify(tmp_path)).run_dir.is_dir()
    assert not (tmp_path / "latest").is_symlink()
    assert names(tmp_path) == ["latest", "one"]


def test_a_file_in_the_way_is_called_so(tmp_path):
    """A runs directory that is a file is refused in words that fit."""
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableError, match="it is not a directory"):
        create_run(tmp_path / "file", "one", specify(tmp_path / "file"))
