"""`tlaunch stacks` of a run over several servers: from any of them, where all ranks are."""

import json
import os
import signal

import pytest

from .conftest import tlaunch

pytestmark = [pytest.mark.slow]

READY = "print('ready', flush=True)"
WAIT = "def held():\n    time.sleep(600)\nheld()"


def stacks(servers, *words, code=0):
    done = tlaunch("stacks", "--json", *words, cwd=servers.directory)
    assert code in {None, done.returncode}, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def test_the_ranks_of_all_servers_are_shown_together(servers):
    """Those at one place as one group, whichever server they are on; and of some ranks no others.

    A server that is stopped, and so cannot answer, is named; the ranks of the others are shown nevertheless.
    """
    launchers = servers.both(command=servers.python(READY, WAIT))
    servers.wait_ready()

    def at_their_place():
        told = stacks(servers, code=None)  # 1 where a server that is held up has not answered in time
        return all("held" in str(rank["frames"]) for rank in told["ranks"]) and len(told["ranks"]) == 4 and told

    told = servers.wait_until(at_their_place, "every rank there")
    assert [group["global_ranks"] for group in told["groups"]] == [[0, 1, 2, 3]]
    assert {rank["global_rank"]: rank["pid"] for rank in told["ranks"]} == servers.pids(4)
    assert told["not_shown"] == {}
    assert [rank["global_rank"] for rank in stacks(servers, "--rank", "1-2")["ranks"]] == [1, 2]
    assert (servers.latest / "endpoint.json").stat().st_mode & 0o777 == 0o600
    agent = servers.agent(1)
    os.kill(agent, signal.SIGSTOP)
    try:
        told = stacks(servers, code=1)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert [rank["global_rank"] for rank in told["ranks"]] == [0, 1]
    assert not told["sentence"].startswith("all ")
    assert told["not_shown"] == {"server 127.0.0.2": "it did not answer within 4 s"}
    launchers[0].send_signal(signal.SIGTERM)
    assert servers.end(*launchers) == [143, 143]
    assert not (servers.latest / "endpoint.json").exists()


def test_a_server_with_a_run_directory_of_its_own_shows_all_ranks_too(servers):
    """It finds its way to the coordinator by what its agent has left there, while the run goes on."""
    program = servers.python(READY, WAIT)
    places = {number: servers.directory / f"runs{number}" for number in (1, 2)}
    launchers = [servers.start(number, "--runs-dir", place, command=program) for number, place in places.items()]
    log = places[2] / "latest" / "device3" / "train.log"
    servers.wait_until(lambda: "ready" in servers.read(log), "ranks")
    for place in places.values():
        shown = servers.wait_until(
            lambda place=place: len((told := stacks(servers, "--runs-dir", place))["ranks"]) == 4 and told, "all ranks"
        )
        assert sorted(rank["global_rank"] for rank in shown["ranks"]) == [0, 1, 2, 3]
        assert shown["directory"] == str((place / "latest").resolve())
    launchers[1].send_signal(signal.SIGTERM)
    assert servers.end(*launchers) == [143, 143]
    assert not [path for place in places.values() for path in place.glob("*/endpoint.json")]
