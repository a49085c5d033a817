"""The measurement of links: the tournament alone, and ranks that measure over gloo."""

import json
import os
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from launcher.core.codec import decode
from launcher.core.records import Cluster, Device, Server
from launcher.core.run_dir import RunDir
from launcher.doctor.links import Links, best_of, judge_links
from launcher.supervise.port import hold_port
from launcher.trainer.links.measurement import carriers, main, rounds
from tests.end_to_end.conftest import hosts_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120
OPTIONS = ("--seconds", "300", "--device", "cpu")  # small messages end long before, also where one is held up


@pytest.mark.parametrize("count", range(1, 12))
def test_every_pair_meets_once_and_nobody_plays_two_at_a_time(count):
    """In as few rounds as there can be: one less than players, or as many where they are odd."""
    played = list(rounds(count))
    assert sorted(pair for each in played for pair in each) == list(combinations(range(count), 2))
    for each in played:
        players = [player for pair in each for player in pair]
        assert len(players) == len(set(players))
    assert len(played) == (count if count % 2 else count - 1)


def measure(server_of, run_dir, *options, address="127.0.0.1", before=lambda rank: (), **more):
    """Exit codes and stderr of all ranks; `server_of` tells each rank's server."""
    held = hold_port()  # ranks take seconds to get to it, and others are given free ports all the time
    processes = []
    for rank, server in enumerate(server_of):
        environment = {
            "RANK": rank, "WORLD_SIZE": len(server_of), "LOCAL_RANK": server_of[:rank].count(server),
            "LOCAL_WORLD_SIZE": server_of.count(server), "GROUP_RANK": server, "MASTER_ADDR": address,
            "MASTER_PORT": held.number, "TLAUNCH_RUN_DIR": run_dir, "OMP_NUM_THREADS": 1, "PYTHONPATH": ROOT, **more,
        }  # fmt: skip
        processes.append(
            subprocess.Popen(
                [*before(rank), sys.executable, "-m", "launcher.trainer.links", *OPTIONS, *options],
                env={**os.environ, **{name: str(value) for name, value in environment.items()}},
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
        )  # fmt: skip
    try:
        ended = [process.communicate(timeout=PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
        held.close()
    return [process.returncode for process in processes], ended


@pytest.mark.distributed
def test_ranks_of_three_servers_measure_every_pair_of_servers(tmp_path):
    """Four ranks: the second one of the first server takes part in all_reduce only. What is written can be judged."""
    codes, ended = measure([0, 0, 1, 2], tmp_path, "--largest", "131072")
    assert codes == [0] * 4, ended
    links = decode(Links, json.loads(RunDir(tmp_path).links.read_text()))
    assert (links.world_size, links.server_count, links.backend, links.device) == (4, 3, "gloo", "cpu")
    assert [pair.servers for pair in links.pairs] == [(0, 1), (0, 2), (1, 2)]
    for pair in links.pairs:
        assert pair.latency_s > 0
        assert pair.bytes_per_s == min(pair.forth_bytes_per_s, pair.back_bytes_per_s) > 0
    assert links.interfaces == ("lo",) * 3
    assert [one.bytes for one in links.all_reduce] == [16384, 131072]
    for one in links.all_reduce:
        assert one.algorithm_bytes_per_s == pytest.approx(one.bytes / one.seconds)
        assert one.bus_bytes_per_s == pytest.approx(1.5 * one.algorithm_bytes_per_s)  # 2 * 3 / 4


@pytest.fixture
def measure_alone(monkeypatch, capsys):
    """Gives a function: the exit code and stderr of the measurement by a world of one rank, in this process."""

    def run(run_dir, *options):
        environment = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "TLAUNCH_RUN_DIR": run_dir}
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        return main([*OPTIONS, *options]), capsys.readouterr().err

    return run


def test_one_rank_alone_has_nothing_to_measure(measure_alone, tmp_path):
    assert measure_alone(tmp_path) == (0, "")
    assert decode(Links, json.loads(RunDir(tmp_path).links.read_text())).pairs == ()


def test_without_a_run_directory_somebody_must_say_where_the_result_goes(measure_alone, tmp_path):
    code, error = measure_alone("")
    assert code == 2
    assert "TLAUNCH_RUN_DIR is not set" in error
    code, _ = measure_alone("", "--output", str(tmp_path / "own.json"))
    assert (code, json.loads((tmp_path / "own.json").read_text())["pairs"]) == (0, [])


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "1000"])
def test_seconds_that_make_no_sense_are_refused(measure_alone, tmp_path, seconds):
    """Ranks that wait give up after ten minutes."""
    code, error = measure_alone(tmp_path, "--seconds", seconds)
    assert code == 2
    assert "--seconds must be above 0" in error


@pytest.fixture(scope="module")
def three_hosts(tmp_path_factory):
    if shutil.which("tc") is None:
        pytest.skip("no tc here")
    with hosts_of(3, tmp_path_factory) as hosts:
        yield hosts.root


@pytest.mark.distributed
@pytest.mark.slow
def test_a_server_that_sends_slowly_is_the_one_that_is_named(three_hosts, tmp_path):
    """The second of three hosts sends 8 Mbit/s, and receives as the others do."""
    limit = ["tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "8mbit", "burst", "32kbit", "latency", "400ms"]
    subprocess.run(["ip", "netns", "exec", "tlh2", *limit], check=True, timeout=10)
    cluster = Cluster(tuple(Server(f"h{rank + 1}", (Device(0, rank),)) for rank in range(3)))
    links, found = None, ()
    for _ in range(3):  # the doctor, too, measures again: other work on this machine may slow a pair for a moment
        codes, ended = measure(
            [0, 1, 2], tmp_path, "--seconds", "6", "--largest", str(1 << 20), address="10.77.0.1",
            before=lambda rank: (three_hosts / "on", f"h{rank + 1}"),
        )  # fmt: skip
        assert codes == [0] * 3, ended
        measured = decode(Links, json.loads(RunDir(tmp_path).links.read_text()))
        links = measured if links is None else best_of(links, measured)
        found = judge_links(links, cluster)
        if len(found) == 1:
            break
    (found,) = found
    print(found)
    assert (found.code, found.servers) == ("slow-link", (1,))
    assert "from h2" in found.message


BEFORE = {"lo": 10, "eth0": 1000, "ib0": 5}


@pytest.mark.parametrize(("after", "expected"), [
    ({"lo": 10, "eth0": 1100, "ib0": 9005}, ("ib0",)),
    ({"lo": 10, "eth0": 8000, "ib0": 9005}, ("ib0", "eth0")),
    ({"lo": 10, "eth0": 1100, "ib0": 5, "new0": 7000}, ("new0",)),
    ({"lo": 10, "eth0": 1900, "ib0": 5}, ()), ({}, ()),
])  # fmt: skip
def test_what_carried_the_data_is_known_by_its_counters(after, expected):
    """The busiest first; nothing where none carried as much as was sent, as data of RDMA is counted elsewhere."""
    assert carriers(BEFORE, after, at_least=1000) == expected
