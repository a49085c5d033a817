"""Ranks make their run's directory together, in any order and at the same time."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec
from launcher.runs.create import join_run

RANKS = 16


def spec_in(runs_dir, name="one"):
    return RunSpec(
        name=name,
        run_dir=runs_dir / name,
        cluster=Cluster.local(RANKS),
        layout=Layout(dp=RANKS),
        ranks=tuple(
            RankSpec(rank, rank % 8, f"server{rank // 8}", rank // 8, rank, ("true",), {"API_TOKEN": "s3cr3t"})
            for rank in range(RANKS)
        ),
        cwd=Path("/"),
        master_addr="127.0.0.1",
        master_port=1,
        engine="Open MPI",
    )


@pytest.fixture(autouse=True)
def _usual_umask():
    former = os.umask(0o022)
    yield
    os.umask(former)


def test_ranks_that_come_at_once_make_one_whole_run(tmp_path):
    """Sixteen on two servers, over one file system."""
    spec = spec_in(tmp_path / "runs")
    with ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(lambda rank: join_run(spec, rank, {"table.json": "{}\n"}), reversed(spec.ranks)))
    assert sorted(path.name for path in spec.run_dir.iterdir()) == sorted(
        [*(f"device{rank}" for rank in range(RANKS)), "run.json", "table.json"]
    )
    assert (spec.run_dir / "table.json").read_text() == "{}\n"
    record = json.loads((spec.run_dir / "run.json").read_text())
    assert (record["engine"], len(record["ranks"])) == ("Open MPI", RANKS)
    assert record["ranks"][3]["env"] == {"API_TOKEN": "********"}
    assert stat.S_IMODE((spec.run_dir / "run.json").stat().st_mode) == 0o644  # by the usual umask, as logs are
    assert stat.S_IMODE((spec.run_dir / "device3" / "env.log").stat().st_mode) == 0o600
    assert (tmp_path / "runs" / "latest").readlink() == Path("one")


def test_each_server_has_a_whole_record_of_its_own(tmp_path):
    """Without a shared file system: the ranks of the second server find nothing."""
    spec = spec_in(tmp_path)
    for rank in spec.ranks[8:]:
        join_run(spec, rank)
    assert json.loads((spec.run_dir / "run.json").read_text())["name"] == "one"


@pytest.mark.parametrize("changes", [
    {"master_port": 2}, {"layout": Layout(dp=RANKS // 2, mp=2)}, {"cluster": Cluster.local(RANKS + 1)},
], ids=["port", "layout", "table"])  # fmt: skip
@pytest.mark.parametrize("second", [1, 8], ids=["same server", "another server"])
def test_ranks_that_were_started_differently_are_refused(tmp_path, changes, second):
    """Wherever they are; the first one's record stays."""
    spec = spec_in(tmp_path)
    join_run(spec, spec.ranks[0])
    before = (spec.run_dir / "run.json").read_bytes()
    other = replace(spec, **changes)
    words = {
        "master_port": "MASTER_PORT 2, the first had 1\\n",
        "layout": "mp=2 .*the first had dp=16 mp=1",
        "cluster": "table",
    }
    with pytest.raises(RefusedLayoutError, match=words[next(iter(changes))]) as error:
        join_run(other, other.ranks[second], {"table.json": "{}"})
    assert error.value.message.startswith("ranks of one were not started alike: this one has")
    assert (spec.run_dir / "run.json").read_bytes() == before
    assert not (spec.run_dir / "table.json").exists()
    join_run(spec, spec.ranks[9])


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"layout": 3}'])
def test_a_record_that_is_none_says_nothing(tmp_path, content):
    """One that is being made, where a file system knows no links, is empty at first."""
    spec = spec_in(tmp_path)
    spec.run_dir.mkdir(parents=True)
    (spec.run_dir / "run.json").write_text(content)
    join_run(spec, spec.ranks[3])


def test_no_rank_writes_over_an_earlier_run(tmp_path):
    """Not even where the engine gives two jobs one name; what was there stays."""
    spec = spec_in(tmp_path)
    join_run(spec, spec.ranks[0])
    (spec.run_dir / "run.json").write_text("earlier")
    with pytest.raises(UsageError, match="holds an earlier run already") as error:
        join_run(spec, spec.ranks[0])
    assert "TLAUNCH_RUN_ID" in error.value.hint
    assert (spec.run_dir / "run.json").read_text() == "earlier"


def test_exactly_one_of_two_jobs_of_one_name_gets_a_rank(tmp_path):
    """Even if both come at the same moment."""
    spec = spec_in(tmp_path)

    def join(_number):
        try:
            join_run(spec, spec.ranks[5])
        except UsageError:
            return "refused"
        return "joined"

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(join, range(8)))
    assert sorted(outcomes) == ["joined"] + ["refused"] * 7


def test_a_place_where_nothing_can_be_made_is_said(tmp_path):
    """A file in the way."""
    (tmp_path / "runs").write_text("")
    spec = spec_in(tmp_path / "runs")
    with pytest.raises(UnreadableError, match="cannot be made or filled: Not a directory"):
        join_run(spec, spec.ranks[0])
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
