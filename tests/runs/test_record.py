"""What later readers take from run.json."""

import json
from pathlib import Path

import pytest

from launcher.core.errors import UnreadableError
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Supervision
from launcher.core.run_dir import RunDir
from launcher.runs.record import Place, read_recorded, spec_to_json


@pytest.fixture
def run_dir(tmp_path):
    return RunDir(tmp_path)


def rank(global_rank):
    return RankSpec(global_rank, global_rank, "10.0.0.1", 0, 4 + global_rank, ("true",), {})


def test_what_is_written_for_a_run_can_be_read(run_dir):
    """Places, grace and restarts of the real record."""
    spec = RunSpec(
        name="a", run_dir=run_dir.root, cluster=Cluster.local(2), layout=Layout(dp=2), ranks=(rank(0), rank(1)),
        cwd=Path("/"), master_addr="::1", master_port=1, supervision=Supervision(grace_s=2.5, max_restarts=3),
    )  # fmt: skip
    run_dir.run_json.write_text(spec_to_json(spec))
    recorded = read_recorded(run_dir)
    assert recorded.places == (Place(0, "10.0.0.1", 0, 4), Place(1, "10.0.0.1", 0, 5))
    assert (recorded.grace_s, recorded.max_restarts) == (2.5, 3)


def test_an_older_record_can_be_read(run_dir):
    """One that knew no restarts."""
    run_dir.run_json.write_text(json.dumps({"schema": 1, "grace_s": 4, "ranks": []}))
    recorded = read_recorded(run_dir)
    assert (recorded.places, recorded.grace_s, recorded.max_restarts) == ((), 4.0, 0)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ranks": [1]}', '{"ranks": 3}', '{"ranks": [], "grace_s": "x"}', "\0"]
)
def test_anything_else_is_unreadable(run_dir, text):
    """Never another exception."""
    run_dir.run_json.write_text(text)
    with pytest.raises(UnreadableError, match="no record of a run"):
        read_recorded(run_dir)


def test_a_missing_record_is_named(tmp_path):
    """With the system's words."""
    with pytest.raises(UnreadableError, match="No such file"):
        read_recorded(RunDir(tmp_path / "missing"))
