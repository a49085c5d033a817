"""Who comes into a run over several servers, and who does not: real connections, both sides of the endpoint."""

import platform
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from selectors import DefaultSelector
from types import SimpleNamespace

import pytest

import launcher.cluster.join as join_module
from launcher import __version__
from launcher.cluster import agent_connection
from launcher.cluster.agent_connection import UNAUTHENTICATED_S, listen
from launcher.cluster.connections import Connections
from launcher.cluster.join import AgentInfo, Endpoint, PassingRefusalError, RunOverError, join
from launcher.control import messages
from launcher.control.messages import BeginAttempt, Challenge, Finish, JoinAccepted, Refused, Waiting, Welcome
from launcher.core.errors import RefusedError, RefusedLayoutError, TlaunchError
from launcher.core.events import Cause
from launcher.core.resources import fingerprint
from launcher.supervise.channel import Channel, ChannelClosedError
from tests.conftest import PATIENCE_S, refusing_port


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """With an agent that is held up on the other side of the endpoint."""
    monkeypatch.setattr(join_module, "CONNECT_S", PATIENCE_S)


def soon():
    return time.monotonic() + PATIENCE_S


def greeting(drawn, token="token", **changes):
    proof = messages.proof_of(token, drawn, "n")
    made = messages.Hello(proof, "n", __version__, fingerprint(), platform.python_version(), "h1", ("10.0.0.1",))
    return replace(made, **changes)


def tried(house, agents, **member):
    """The future of a membership, once it is done."""
    future = agents.join(house, **member)
    house.attend(future.done)
    return future


def come(house, agents, **member):
    return tried(house, agents, **member).result()


def refused(house, agents, **member):
    """The error at the member, and the one that concerns the run."""
    future = tried(house, agents, **member)
    (error,) = house.errors
    return future.exception(), error


def test_a_server_whose_former_ranks_are_being_ended_is_taken_in_later(opened, agents):
    former = come(opened, agents, host="h2", addresses=("10.0.0.2",))
    opened.joining, opened.registration.takes_back = False, True
    opened.registration.peers[1].given_up = True
    late = tried(opened, agents, host="h2", addresses=("10.0.0.2",), patience_s=0.1)
    assert isinstance(late.exception(), PassingRefusalError)
    delayed = []
    again = agents.join(opened, on_delay=delayed.append, host="h2", addresses=("10.0.0.2",))
    opened.attend(lambda: delayed)
    former.close()
    opened.attend(lambda: opened.registration.peers[1].lost is not None)
    opened.registration.peers.pop(1).close()
    opened.attend(again.done)
    assert again.result().welcome.server_index == 1
    assert opened.errors == []


def test_a_server_that_has_joined_learns_that_the_run_is_over(opened, agents):
    membership = come(opened, agents)
    start = agents.wait(membership)
    opened.registration.peers[0].send(JoinAccepted())
    opened.registration.peers[0].send(Finish(Cause.STOPPED, 130, "stopped by SIGINT"))
    opened.attend(start.done)
    assert isinstance(start.exception(), RunOverError)
    assert start.exception().exit_code == 130


def test_a_server_that_is_about_to_join_holds_up_no_end(opened, agents):
    agents.join_both(opened)
    registration = opened.registration
    registration.peers[0].done = True
    assert registration.has_agents_left
    registration.has_begun = registration.peers[0].has_begun = True
    assert not registration.has_agents_left


def test_an_attempt_is_sent_to_those_that_are_ready(opened, agents):
    """Another one would take it for its first, and miss the next."""
    one, other = agents.join_both(opened)
    starts = [agents.wait(one), agents.wait(other)]
    opened.attend(lambda: opened.registration.complete)
    opened.registration.peers[1].ready = None
    with closing(DefaultSelector()) as selector:
        connections = Connections(opened.registration, selector, 20.0, on_words=None, on_loss=None)
        connections.send_all(BeginAttempt(1, 4001), ready=True)
        connections.send_all(BeginAttempt(2, 4002))
    opened.attend(lambda: all(start.done() for start in starts))
    assert [start.result().number for start in starts] == [1, 2]


def test_a_server_is_awaited_until_it_is_ready(opened, agents):
    membership = come(opened, agents)
    assert opened.registration.missing == ("10.0.0.1", "h2")
    welcome = membership.welcome
    assert (welcome.server_index, welcome.run_name, welcome.silence_s, welcome.job) == (0, "a-run", 20.0, "the job")
    start = agents.wait(membership, 4711)
    opened.attend(lambda: opened.registration.missing == ("h2",))
    (peer,) = opened.registration.peers.values()
    assert peer.ready.master_port == 4711
    opened.attend(lambda: peer.pings.clock.known)
    assert abs(peer.pings.clock.ahead_ns) <= peer.pings.clock.error_ns
    peer.send(BeginAttempt(0, 4711))
    assert start.result(PATIENCE_S) == BeginAttempt(0, 4711)


def test_an_agent_that_was_started_by_hand_needs_no_job(house, agents):
    agreement = {"layout": "dp=2"}
    assert come(house(agreement=agreement), agents, agreement=agreement).welcome.job is None


@pytest.mark.parametrize(
    ("token", "agreement", "brings_all"),
    [("guess", None, False), ("shared", None, False), ("token", {}, False), ("shared", {}, True), ("token", {}, True)],
)
def test_another_token_is_no_way_in_and_no_concern_of_the_run(house, agents, token, agreement, brings_all):
    """The token for agents started by hand does not give the job, with all values of --env; an engine that brings all lets none of those in."""
    opened = house(brings_all=brings_all)
    future = tried(opened, agents, token=token, agreement=agreement, patience_s=0.3)
    assert (opened.errors, opened.registration.peers) == ([], {})
    assert "cannot be reached: 127.0.0.1 port" in future.exception().message
    assert "has a different token" in future.exception().message
    assert opened.registration.mistaken == (set() if agreement is None else {"127.0.0.1"})


def test_each_reason_that_lasts_is_reported_to_who_waits(agents, monkeypatch):
    monkeypatch.setattr(join_module, "AGAIN_S", 0.01)
    reasons, rounds, opened = [], [], threading.Event()
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))

        def tokens():
            rounds.append(None)
            if len(rounds) == 4:
                listener.listen()
                opened.set()
            if len(rounds) == 7:
                raise EOFError
            return ("guess",)

        future = agents.join(None, ports=[listener.getsockname()[1]], on_delay=reasons.append, tokens=tokens)
        assert opened.wait(PATIENCE_S)
        for _ in range(3):
            listener.accept()[0].close()
        assert isinstance(future.exception(), EOFError)
    refused, closed = reasons
    assert "Connection refused" in refused
    assert "Connection refused" not in closed


@pytest.mark.parametrize("name", [
    "/tmp/elsewhere", "..", ".", "../elsewhere", "a/b", "", "latest", ".hidden", "a\0b", "a\nb", "\ud800", "x" * 256, "é" * 128,
], ids=lambda name: ascii(name[:12]))  # fmt: skip
def test_a_run_s_name_that_is_a_path_is_refused(house, agents, name):
    """It becomes a directory's name here, and whoever knows the token chooses it."""
    opened = house(run_name=name)
    refusal = tried(opened, agents, patience_s=0.3).exception()
    assert "is not a valid directory name" in refusal.message
    assert come(house(run_name="20261121-053712-très bien-2"), agents).welcome.server_index == 0


def test_of_several_tokens_one_is_enough(opened, agents):
    rounds = iter([("guess",), ("guess", "shared")])
    assert come(opened, agents, agreement={}, tokens=lambda: next(rounds)).welcome.server_index == 0
    assert opened.errors == []


def test_another_protocol_is_told_to_both(opened, agents, monkeypatch):
    monkeypatch.setattr(agent_connection, "messages", SimpleNamespace(**{**vars(messages), "PROTOCOL": 99}))
    opened.registration._code = "other"
    there, here = refused(opened, agents)
    assert there.exit_code == here.exit_code == 3
    assert "h1 (10.0.0.1) has different code of tlaunch" in here.message


@pytest.mark.parametrize("words", [
    b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\n", b'["Done", {}]\n', b'["EventReport", {"line": ""}]\n',
    b"x" * (3 << 20), b"",
], ids=lambda words: repr(words[:20]))  # fmt: skip
def test_a_connection_that_sends_nonsense_is_let_go(opened, agents, words):
    connection = agents.connect(opened)
    opened.attend(lambda: opened.registration.unauthenticated)
    pushed = agents.push(connection, words)
    opened.attend(lambda: pushed.done() and opened.dismissed)
    assert (opened.errors, opened.registration.unauthenticated) == ([], [])


@pytest.mark.parametrize("nonce", ["\ud800", "", "é\0"], ids=repr)
def test_an_odd_nonce_is_no_way_in(opened, agents, nonce):
    agents.say(opened, lambda drawn: greeting(drawn, token="guess", nonce=nonce))
    opened.attend(lambda: opened.dismissed)
    assert opened.errors == []


def test_a_connection_that_sends_nothing_is_let_go(opened, agents):
    agents.connect(opened)
    (unknown,) = opened.attend(lambda: list(opened.registration.unauthenticated))
    assert list(opened.registration.dismiss()) == []
    unknown.since -= UNAUTHENTICATED_S
    opened.attend(lambda: opened.dismissed)


def test_a_second_machine_that_is_the_same_server_is_refused(opened, agents):
    come(opened, agents)
    there, here = refused(opened, agents, host="other", said="10.0.0.1", addresses=("10.7.7.7",))
    assert isinstance(here, RefusedLayoutError)
    both = "two agents joined as server 10.0.0.1 of the rank table: h1 (10.0.0.1) and other (10.7.7.7)"
    assert (there.message, there.exit_code, there.hint) == (here.message, 3, here.hint)
    assert there.message == both
    assert opened.registration.peers[0].hello.host == "h1"


@pytest.mark.parametrize(("options", "member", "expected"), [
    ({"joining": False}, {}, "2: h1 (10.0.0.1) comes too late: run a-run has already started without server 10.0.0.1"),
    ({}, {"said": "h9"}, "2: --server h9"),
    (
        {"agreement": {"command": "python a.py"}}, {"agreement": {"command": "python b.py"}},
        "3: server 10.0.0.1 was started with a different command: python b.py there, python a.py on the first server",
    ),
], ids=["late", "unknown", "another agreement"])  # fmt: skip
def test_a_server_that_does_not_belong_to_the_run_is_refused(house, agents, options, member, expected):
    there, here = refused(house(**options), agents, **member)
    assert (there.message, there.exit_code) == (here.message, here.exit_code)
    assert f"{there.exit_code}: {there.message}".startswith(expected)


def test_a_server_that_comes_after_a_refusal_hears_it_too(house, agents):
    opened = house(joining=False)
    opened.registration.refusal = RefusedLayoutError("server h2 was started with another layout", hint="alike")
    there, _ = refused(opened, agents, said="h2")
    assert (there.message, there.hint, there.exit_code) == ("server h2 was started with another layout", "alike", 3)


@pytest.mark.parametrize(("changes", "expected"), [
    ({"python": f"{platform.python_version().rpartition('.')[0]}.99"}, None),  # another patch will do
    ({"version": "9.9"}, f"h1 (10.0.0.1) has tlaunch 9.9, and this machine has {__version__}"),
    ({"code": "0123"}, f"h1 (10.0.0.1) has different code of tlaunch {__version__} than this machine"),
    ({"python": "3.1.4"}, "h1 (10.0.0.1) runs tlaunch with Python 3.1.4, and this machine with"),
], ids=["patch", "tlaunch", "code", "Python"])  # fmt: skip
def test_other_versions_are_refused(opened, agents, changes, expected):
    channel = agents.say(opened, lambda drawn: greeting(drawn, **changes))
    opened.attend(lambda: opened.errors or opened.registration.peers)
    assert bool(opened.registration.peers) == (expected is None)
    for error in opened.errors:
        assert expected in error.message
        assert next(channel.wait_for(soon())) == Refused(error.message, error.hint, 3)


def test_a_server_that_cannot_take_part_says_so_to_the_run(opened, agents):
    membership = come(opened, agents, host="h2", addresses=("10.0.0.9",))
    membership.channel.send(messages.EventReport("line"))
    membership.refuse(RefusedLayoutError("no cores", hint="buy some"))
    opened.attend(lambda: opened.errors)
    (error,) = opened.errors
    assert isinstance(error, RefusedError)
    assert (error.message, error.hint, error.exit_code) == ("server h2 (h2): no cores", "buy some", 3)
    assert opened.heard == [messages.EventReport("line")]


def test_a_server_that_waits_hears_which_are_missing(house, agents):
    opened, heard = house(), []
    start = agents.wait(come(opened, agents), tell=heard.append)
    for word in (Waiting(("h2",)), Waiting(()), BeginAttempt(3, 9)):
        opened.registration.peers[0].send(word)
    assert start.result(PATIENCE_S) == BeginAttempt(3, 9)
    assert heard == [Waiting(("h2",)), Waiting(())]


def test_who_waits_is_told_why_nothing_begins_and_what_to_do(opened, agents):
    membership = come(opened, agents)
    start = agents.wait(membership)
    opened.registration.peers[0].send(Finish(Cause.FAILED, 1, "server h2 did not come", "start it\nthere"))
    opened.attend(start.done)
    told = "the run ended before ranks started on this server: server h2 did not come\nhint: start it\\u000athere"
    assert str(start.exception()) == told


@pytest.mark.parametrize(("word", "code"), [(Finish(Cause.FAILED, 3), 3), (Refused("x", None, 2), 2)], ids=repr)
def test_a_server_that_waits_hears_that_the_run_has_ended_before_it_began(opened, agents, word, code):
    start = agents.wait(come(opened, agents))
    opened.registration.peers[0].send(word)
    error = start.exception(PATIENCE_S)
    assert isinstance(error, TlaunchError)
    assert error.exit_code == code


@pytest.mark.parametrize(
    ("silence_s", "why"), [(0.2, "no message was received for 0.2 s"), (20.0, "the connection was closed")]
)
def test_a_coordinator_that_goes_or_is_silent_is_lost(house, agents, silence_s, why):
    opened = house(silence_s=silence_s)
    start = agents.wait(come(opened, agents))
    if silence_s > 1:
        opened.attend(lambda: opened.registration.peers[0].ready)
        opened.registration.peers[0].close()
    assert start.exception(PATIENCE_S).message == f"lost the connection to the run's coordinator: {why}"


def test_the_first_address_that_answers_is_taken(house, agents):
    opened, another = house(), house(token="another run's")
    with refusing_port() as dead:
        future = agents.join(opened, ports=[dead, another.port, opened.port])
        opened.attend(lambda: another._step() or future.done())
    assert future.result().welcome.run_name == "a-run"


def pretend(channel):
    """Welcome an agent without a proof that the token is known."""
    channel.send(Challenge(messages.PROTOCOL, "n"))
    hello = next(channel.wait_for(soon()))
    channel.send(Welcome(hello.proof, 0, "run", 20.0, "a job"))


@pytest.mark.parametrize(("act", "why"), [
    (lambda channel: channel.send(Challenge(messages.PROTOCOL + 1, "n")), "a different version of tlaunch"),
    (lambda channel: channel.send(Finish(Cause.FAILED, 1)), "is not a coordinator"),
    (lambda channel: channel.send(Welcome("", 0, "r", 1.0)), "is not a coordinator"),
    (pretend, "authentication failed: the process at this address does not have this run's token"),
], ids=["version", "no challenge", "no proof asked", "no token"])  # fmt: skip
def test_what_is_no_coordinator_of_this_version_and_run_is_not_joined(act, why):
    def answer(listener):
        connection, _ = listener.accept()
        channel = Channel(connection)
        act(channel)
        with pytest.raises(ChannelClosedError):
            list(channel.wait_for(soon()))
        channel.close()

    with listen() as listener, ThreadPoolExecutor() as pool:
        listener.setblocking(True)
        endpoint = Endpoint((("127.0.0.1", listener.getsockname()[1]),), "t")
        answered = pool.submit(answer, listener)
        with pytest.raises(TlaunchError, match=why):
            join(endpoint, AgentInfo("h1", ()), 0.0, lambda _why: None)
        answered.result()


def test_agents_of_other_machines_are_known_by_their_addresses(house, agents):
    opened = house(silence_s=20.0)
    come(opened, agents)
    assert not opened.registration.hears_others(20.0)
    (peer,) = opened.registration.peers.values()
    with socket.create_connection(("127.0.0.1", opened.port), source_address=("127.0.0.2", 0)) as connection:
        opened.attend(lambda: opened.registration.unauthenticated)
        peer.channel, own = opened.registration.unauthenticated[0].channel, peer.channel
        assert connection.getsockname()[0] == peer.channel.peer
        assert opened.registration.hears_others(20.0)
        peer.channel.heard_at -= 11.0
        assert not opened.registration.hears_others(20.0)
        peer.channel = own
