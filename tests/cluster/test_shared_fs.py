"""Whether two machines see the same run directory."""

from launcher.cluster.coordinator_files import leave_mark, remove_mark, sees_mark
from launcher.core.run_dir import RunDir


def test_who_sees_the_mark_shares_the_directory(tmp_path):
    """Another directory of the same name does not have it."""
    ours, others = RunDir(tmp_path / "ours"), RunDir(tmp_path / "others")
    for run_dir in (ours, others):
        run_dir.root.mkdir()
    mark = leave_mark(ours)
    assert leave_mark(others) != mark
    assert sees_mark(ours, mark)
    assert not sees_mark(others, mark)
    assert not sees_mark(RunDir(tmp_path / "missing"), mark)


def test_a_mark_leaves_nothing(tmp_path):
    """Also where it is gone already."""
    mark = leave_mark(RunDir(tmp_path))
    remove_mark(RunDir(tmp_path), mark)
    remove_mark(RunDir(tmp_path), mark)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written_there_is_no_mark(tmp_path):
    """Then nothing can be copied to there either."""
    assert leave_mark(RunDir(tmp_path / "missing")) is None
    remove_mark(RunDir(tmp_path), None)
