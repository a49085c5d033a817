"""Create a run's directory atomically, or by its ranks together, and read its run.json."""

import json
import os
import stat
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError
from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Supervision
from launcher.core.run_dir import RunDir
from launcher.runs.engine_ranks import announcement, join_run
from launcher.runs.record import RankPlace, create_run, free_name, read_recorded

RANKS = 16


def specify(runs_dir, ranks=2, **more):
    """Return a function from a run's name to its spec, with eight ranks per server."""
    variables = {"API_TOKEN": "s3cr3t", "GONE": None}

    def spec(name):
        return RunSpec(
            name=name, run_dir=runs_dir / name, cluster=Cluster.local(ranks), layout=Layout(dp=ranks),
            ranks=tuple(
                RankSpec(rank, rank % 8, f"server{rank // 8}", rank // 8, rank, ("true",), variables)
                for rank in range(ranks)
            ),
            cwd=Path("/"), master_addr="127.0.0.1", master_port=1, **more,
        )  # fmt: skip

    return spec


def joined_spec(runs_dir):
    return specify(runs_dir, RANKS, engine="Open MPI")("one")


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_everything_is_there_at_once(tmp_path):
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
    assert {mode_of(spec.run_dir / name) for name in ("run.json", "rank_table.json")} == {mode}


def test_taken_names_are_counted_up(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one-2").touch()
    (tmp_path / "one-3").symlink_to("nowhere")
    assert free_name(tmp_path, "one") == "one-4"
    assert create_run(tmp_path, "one", specify(tmp_path)).name == "one-4"


@pytest.mark.parametrize(
    "take", [lambda path: (path / "theirs").mkdir(parents=True), Path.touch], ids=["directory", "file"]
)
def test_a_name_taken_in_between_is_no_trouble(tmp_path, take):
    """Someone who takes the name after it was found free costs another try, not a run."""
    asked = []

    def slow(name):
        if not asked:
            take(tmp_path / name)
        asked.append(name)
        return specify(tmp_path)(name)

    assert create_run(tmp_path, "one", slow).name == "one-2"
    assert asked == ["one", "one-2"]
    assert names(tmp_path) == ["latest", "one", "one-2"]


def test_eight_at_once_get_eight_names(tmp_path):
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


@pytest.mark.parametrize("runs_dir", ["a/b", "."], ids=["new", "older"])
def test_failure_takes_back_what_was_made_for_it(tmp_path, runs_dir):
    """Parents that had to be made for the runs directory go again when the run cannot be made; older ones stay."""
    (tmp_path / "old").mkdir()
    with pytest.raises(UnreadableError) as caught:
        create_run(tmp_path / runs_dir, "one", specify(tmp_path / runs_dir), {"missing/directory.txt": "x"})
    assert f"cannot create a run directory in {tmp_path / runs_dir}: No such file or directory" in caught.value.message
    assert names(tmp_path) == ["old"]


def test_a_directory_called_latest_is_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    assert create_run(tmp_path, "one", specify(tmp_path)).run_dir.is_dir()
    assert not (tmp_path / "latest").is_symlink()
    assert names(tmp_path) == ["latest", "one"]


@pytest.mark.parametrize(("make", "words"), [
    (lambda runs_dir: create_run(runs_dir, "one", specify(runs_dir)), "cannot create a run directory in .*: it is not a directory"),
    (
        lambda runs_dir: join_run(joined_spec(runs_dir), joined_spec(runs_dir).ranks[0]),
        "cannot create the run directory or write to it: Not a directory",
    ),
], ids=["by the launcher", "by its ranks"])  # fmt: skip
def test_a_file_in_the_way_is_called_so(tmp_path, make, words):
    (tmp_path / "file").touch()
    with pytest.raises(UnreadableError, match=words):
        make(tmp_path / "file")
    assert names(tmp_path) == ["file"]


def test_one_rank_announces_the_run_and_others_wait_for_it(tmp_path):
    run_dir = RunDir(tmp_path)

    def announce():
        with announcement(run_dir, without_mark=True) as is_first:
            return is_first

    with ThreadPoolExecutor(1) as pool:
        with announcement(run_dir, without_mark=False) as is_first:
            assert is_first
            other = pool.submit(announce)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.1)
        assert not other.result()


def test_ranks_that_come_at_once_make_one_whole_run(tmp_path):
    spec = joined_spec(tmp_path / "runs")
    with ThreadPoolExecutor(RANKS) as pool:
        list(pool.map(lambda rank: join_run(spec, rank, {"table.json": "{}\n"}), reversed(spec.ranks)))
    assert names(spec.run_dir) == sorted([*(f"device{rank}" for rank in range(RANKS)), "run.json", "table.json"])
    assert (spec.run_dir / "table.json").read_text() == "{}\n"
    record = json.loads((spec.run_dir / "run.json").read_text())
    assert (record["engine"], len(record["ranks"])) == ("Open MPI", RANKS)
    assert record["ranks"][3]["env"] == {"API_TOKEN": "********", "GONE": None}
    usual = tmp_path / "usual"
    usual.touch(mode=0o644)
    assert mode_of(spec.run_dir / "run.json") == mode_of(usual)  # by the umask, as logs are
    assert mode_of(spec.run_dir / "device3" / "env.log") == 0o600
    assert (tmp_path / "runs" / "latest").readlink() == Path("one")


def test_each_server_has_a_whole_record_of_its_own(tmp_path):
    """Without a shared file system: the ranks of the second server find nothing."""
    spec = joined_spec(tmp_path)
    for rank in spec.ranks[8:]:
        join_run(spec, rank)
    assert json.loads((spec.run_dir / "run.json").read_text())["name"] == "one"


@pytest.mark.parametrize(("changes", "words"), [
    ({"master_port": 2}, "MASTER_PORT 2, the first has 1\\n"),
    ({"layout": Layout(dp=RANKS // 2, mp=2)}, "mp=2 .*the first has dp=16 mp=1"),
    ({"cluster": Cluster.local(RANKS + 1)}, "table"),
], ids=["port", "layout", "table"])  # fmt: skip
@pytest.mark.parametrize("second", [1, 8], ids=["same server", "another server"])
def test_ranks_that_were_started_differently_are_refused(tmp_path, changes, words, second):
    spec = joined_spec(tmp_path)
    join_run(spec, spec.ranks[0])
    before = (spec.run_dir / "run.json").read_bytes()
    other = replace(spec, **changes)
    with pytest.raises(RefusedLayoutError, match=words) as error:
        join_run(other, other.ranks[second], {"table.json": "{}"})
    assert error.value.message.startswith("ranks of one were started with different settings: this rank has")
    assert (spec.run_dir / "run.json").read_bytes() == before
    assert not (spec.run_dir / "table.json").exists()
    join_run(spec, spec.ranks[9])


@pytest.mark.parametrize("content", ["", "null", "[1]", '{"layout": 3}'])
def test_a_record_that_is_none_says_nothing(tmp_path, content):
    """One that is being made, where a file system knows no links, is empty at first."""
    spec = joined_spec(tmp_path)
    spec.run_dir.mkdir(parents=True)
    (spec.run_dir / "run.json").write_text(content)
    join_run(spec, spec.ranks[3])


def test_no_rank_writes_over_an_earlier_run(tmp_path):
    spec = joined_spec(tmp_path)
    join_run(spec, spec.ranks[0])
    (spec.run_dir / "run.json").write_text("earlier")
    with pytest.raises(UsageError, match="already contains an earlier run") as error:
        join_run(spec, spec.ranks[0])
    assert "TLAUNCH_RUN_ID" in error.value.hint
    assert (spec.run_dir / "run.json").read_text() == "earlier"


def test_exactly_one_of_two_jobs_of_one_name_gets_a_rank(tmp_path):
    spec = joined_spec(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        joined = [pool.submit(join_run, spec, spec.ranks[5]) for _ in range(8)]
    assert Counter(type(each.exception()) for each in joined) == {type(None): 1, UsageError: 7}


def test_what_is_written_for_a_run_can_be_read(tmp_path):
    spec = create_run(tmp_path, "one", specify(tmp_path, 9, supervision=Supervision(grace_s=2.5, max_restarts=3)))
    recorded = read_recorded(RunDir(spec.run_dir))
    assert recorded.places[7:] == (RankPlace(7, "server0", 0, 7), RankPlace(8, "server1", 1, 8))
    assert (recorded.grace_s, recorded.max_restarts) == (2.5, 3)


def test_an_older_record_can_be_read(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"schema": 1, "grace_s": 4, "ranks": []}))
    recorded = read_recorded(RunDir(tmp_path))
    assert (recorded.places, recorded.grace_s, recorded.max_restarts) == ((), 4.0, 0)


@pytest.mark.parametrize("text", [
    *("", "[]", "{}", '{"ranks": [1]}', '{"ranks": 3}', '{"ranks": [], "grace_s": "x"}', "\0", "[" * 100_000),
    *(
        f'{{"ranks": [], "supervision": {{"{name}": {value}}}}}'
        for name in ("max_restarts", "grace_s")
        for value in ("1e999", "NaN", '"x"', "[]", "9" * 400)
    ),
    '{"ranks": [], "engine": 3}',
    '{"ranks": [], "supervision": {"elastic": {"x": 1}}, "cluster": {"servers": [{"server_id": 1, "devices": [{}]}]}}',
])  # fmt: skip
def test_anything_else_is_unreadable(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(UnreadableError, match="not a valid run record"):
        read_recorded(RunDir(tmp_path))


def test_a_missing_record_is_named(tmp_path):
    with pytest.raises(UnreadableError, match="No such file"):
        read_recorded(RunDir(tmp_path / "missing"))
