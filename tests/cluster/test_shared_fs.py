"""Whether two machines see the same run directory."""

from launcher.cluster.coordinator_files import leave_mark, remove_mark, sees_mark
from launcher.core.run_dir import RunDir


def test_a_server_that_sees_the_mark_shares_the_directory(tmp_path):
    """Another directory of the same name does not have it. Where nothing can be written, there is no mark."""
    ours, others, missing = (RunDir(tmp_path / name) for name in ("ours", "others", "missing"))
    for run_dir in (ours, others):
        run_dir.root.mkdir()
    mark = leave_mark(ours)
    assert leave_mark(others) != mark
    assert [sees_mark(run_dir, mark) for run_dir in (ours, others, missing)] == [True, False, False]
    for _ in range(2):  # also where it is gone already
        remove_mark(ours, mark)
    assert list(ours.root.iterdir()) == []
    assert leave_mark(missing) is None
    remove_mark(missing, None)
