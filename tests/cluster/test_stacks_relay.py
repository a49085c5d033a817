"""Questions to a coordinator where ranks are: real connections, agents that answer or do not."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from launcher.cluster import stack_requests as stacks
from launcher.cluster.coordinator_files import ControlEndpoint, read_endpoint, remove_endpoint, write_endpoint
from launcher.cluster.stack_requests import CoordinatorUnreachableError, ask_stacks
from launcher.control.messages import AskStacks, Stacks, TakeStacks, proof_of
from launcher.core.run_dir import RunDir
from tests.conftest import PATIENCE_S

KEY = "the key"


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(stacks, "CONNECT_S", PATIENCE_S)
    monkeypatch.setattr(stacks, "ANSWER_S", PATIENCE_S)


@pytest.fixture
def ask():
    with ThreadPoolExecutor() as pool:
        yield lambda house, key=KEY, ranks=None: pool.submit(
            ask_stacks, ControlEndpoint((("127.0.0.1", house.port),), key), ranks
        )


@pytest.fixture
def running(house, agents):
    opened = house(key=KEY)
    channels = [membership.channel for membership in agents.join_both(opened)]
    opened.joining = False
    for peer in opened.registration.peers.values():
        peer.has_begun = True
    return opened, channels


def asked(channel):
    for message in channel.wait_for(time.monotonic() + PATIENCE_S):
        if isinstance(message, TakeStacks):
            return message
    raise AssertionError("no question")


def one_rank(number):
    return {"ranks": [{"global_rank": number, "pid": 100 + number, "step": 3, "stack": None}], "trouble": None}


def attend(house, future):
    """Until there is an answer; agents' words are handed on as a coordinator does."""

    def look():
        for peer in house.registration.peers.values():
            for message in peer.take():
                if isinstance(message, Stacks):
                    house.registration.stacks_relay.take(peer.server_index, message)
        return future.done()

    house.attend(look)
    return future


def test_a_server_that_has_joined_and_has_no_agent_yet_is_not_waited_for(running, ask):
    house, [channel, _] = running
    house.registration.peers[1].has_begun = False
    future = ask(house)
    house.attend(lambda: house.registration.stacks_relay._open)
    channel.send(Stacks(asked(channel).number, one_rank(0)))
    parts, silent = attend(house, future).result()
    assert len(parts) == 1
    assert list(silent) == [house.registration._servers[1].server_id]


def test_what_all_servers_find_is_told_together(running, ask):
    house, channels = running
    future = ask(house, ranks=((0, 1),))
    house.attend(lambda: house.registration.stacks_relay._open)
    for number, channel in enumerate(channels):
        question = asked(channel)
        assert question.ranks == ((0, 1),)
        channel.send(Stacks(question.number, one_rank(number)))
    parts, silent = attend(house, future).result()
    assert sorted((part.ranks[0].global_rank, part.ranks[0].pid) for part in parts) == [(0, 100), (1, 101)]
    assert silent == {}


@pytest.mark.parametrize("why", ["it did not answer within 0.5 s", "it is lost or has ended"])
def test_a_server_without_an_answer_is_named(running, ask, monkeypatch, why):
    house, channels = running
    if "lost" in why:
        house.registration.peers.pop(1).close()
    else:
        monkeypatch.setattr(stacks, "ANSWER_LIMIT_S", 0.5)
    future = ask(house)
    house.attend(lambda: house.registration.stacks_relay._open)
    channels[0].send(Stacks(asked(channels[0]).number, one_rank(0)))
    parts, silent = attend(house, future).result()
    assert [rank.global_rank for part in parts for rank in part.ranks] == [0]
    assert silent == {"h2": why}


def test_before_ranks_are_started_no_server_is_asked(running, ask):
    house, _ = running
    house.joining = True
    assert attend(house, ask(house)).result() == ((), {})


@pytest.mark.parametrize(("own", "key"), [(KEY, "another key"), (KEY, ""), ("", "")])
def test_an_asker_that_does_not_know_the_key_hears_nothing(house, ask, own, key):
    opened = house(key=own, joining=False)
    future = ask(opened, key=key)
    opened.attend(future.done)
    with pytest.raises(CoordinatorUnreachableError, match="the connection was closed"):
        future.result()


def test_the_run_s_token_is_no_key_and_the_key_no_token(running, agents):
    house, _ = running
    channel = agents.say(house, lambda drawn: AskStacks(proof_of("token", stacks.PURPOSE, drawn, "n"), "n"))
    house.attend(lambda: house.dismissed)
    with pytest.raises(Exception, match="closed"):
        list(channel.wait_for(time.monotonic() + PATIENCE_S))
    future = agents.join(house, token=KEY, patience_s=0.0)
    house.attend(future.done)
    assert "has a different token" in future.exception().message


def test_words_that_belong_to_no_question_are_not_kept(running):
    house, _ = running
    house.registration.stacks_relay.take(0, Stacks(7, one_rank(0)))
    assert not house.registration.stacks_relay._open


def test_an_endpoint_is_for_its_owner_alone_and_is_removed(tmp_path):
    run_dir = RunDir(tmp_path)
    endpoint = ControlEndpoint((("10.0.0.1", 4711), ("fe80::1", 4711)), KEY)
    write_endpoint(run_dir, endpoint)
    assert read_endpoint(run_dir) == endpoint
    assert run_dir.endpoint.stat().st_mode & 0o777 == 0o600
    for _ in range(2):
        remove_endpoint(run_dir)
        assert read_endpoint(run_dir) is None
    for text in ("", "[]", '{"addresses": [["h"]], "key": "k"}', '{"addresses": [["h", "x"]], "key": 1}'):
        run_dir.endpoint.write_text(text)
        assert read_endpoint(run_dir) is None


def test_a_machine_where_no_coordinator_listens_is_reported_with_its_reason():
    refused = r"127\.0\.0\.1 port 1: Connection refused; 127\.0\.0\.1 port 2: Conn"
    with pytest.raises(CoordinatorUnreachableError, match=refused):
        ask_stacks(ControlEndpoint((("127.0.0.1", 1), ("127.0.0.1", 2)), KEY), None)
