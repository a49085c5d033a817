"""The words of servers to each other: one JSON line each, and what is none."""

import json
import typing

import pytest

from launcher.control import messages as m
from launcher.control.messages import Refused, from_line, is_proof, proof_of, to_line
from launcher.control.orders import ProbeTarget
from launcher.core.events import Cause
from launcher.core.verdict import Confidence, Failure, Role, StackGroup, Verdict

VERDICT = Verdict(
    None, Confidence.CERTAIN, "lost", (Failure(3, Role.CAUSE, "x", "y", 5, "a.py:1 in f", -9, "tb"),),
    (StackGroup((0, 1), "running", ("a.py:2 in g",)),), server="h2", signature="s",
)  # fmt: skip
ALL = (
    m.Challenge(1, "n"), m.Hello("p", "n", "0.1", "c0de", "3.11.2", "h1", ("10.0.0.1",), "h1", 3, {"layout": "dp=2"}),
    m.Hello("p", "n", "0.1", "c0de", "3.11.2", "h1", ()), m.Welcome("p", 1, "run", 20.0, "job"),
    Refused("no", "hint", 3), m.Ready(7), m.Ready(), m.Ready(1, False, {"train.py": "a"}), m.Ready(meeting=("10.0.0.1",)), m.Waiting(("h1", "h2")),
    m.Waiting(("h1",), 300.0), m.JoinAccepted(), m.BeginAttempt(2, 29500), m.EventReport('{"schema": 2}\n'), m.CollectEvidence(1),
    m.EvidenceReport(0, 1, {"ranks": []}), m.EvidenceReport(0, 1, {"ranks": []}, 40001),
    m.ProbeReach(0, 1, (ProbeTarget(2, (40001, 29500), ("10.0.0.2",)),), 2.0),
    m.ProbeResult(0, 1, ((2, "no answer"),), (29500,), (3,)), m.EndRanks(Cause.HUNG, VERDICT, restarts=True),
    m.AttemptEnded(0, 1, left=False, master_port=9), m.EndRanks(Cause.STOPPED, signal=2, server="h2"), m.ForwardSignal(20),
    m.SignalReceived(15, 0), m.AgentFailed("killed"), m.Ping(1 << 62), m.Pong(1, 2), m.Finish(Cause.FAILED, 3), m.Finish(Cause.FAILED, 3, "why", "do this"),
    m.ProbeQuestion(1, {"topic": "facts"}), m.ProbeAnswer(1, {"cpus": 2}), m.Done((1, 2), 4),
    m.FileChunk("log", 3, 0, 5, "eA==", anew=True), m.FileSnapshot("heartbeat", 3, None, 7),
    m.ChunkAck("log", 3, 5, trouble=True), m.AskStacks("p", "n", ((0, 3), (7, 7))), m.AskStacks("p", "n"),
    m.TakeStacks(1, ((0, 3),)), m.Stacks(1, {"ranks": []}), m.Freed("p", "n"),
    m.AllStacks("p", ({"ranks": []},), {"h2": "lost"}),
)  # fmt: skip


def test_every_message_is_tried_here():
    assert {type(message) for message in ALL} == set(typing.get_args(m.Message))


@pytest.mark.parametrize("message", ALL, ids=lambda message: type(message).__name__)
def test_a_message_is_one_line_and_comes_back_as_it_was(message):
    line = to_line(message)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    assert from_line(line) == message


def test_fields_that_another_version_added_are_left_out():
    assert from_line(b'["Refused", {"message": "m", "later": [1]}]') == Refused("m")


@pytest.mark.parametrize("line", [
    b"", b"GET / HTTP/1.1\r", b"\x16\x03\x01\x02\x00\x01", b"\xff\xfe", b"null", b"1", b"[]", b'"ab"', b"{}",
    b'["Ping"]', b'["Ping", {}, 1]', b'["Nothing", {}]', b'[["Ping"], {}]', b"[{}, {}]", b'{"Ping": 1, "x": 2}',
    b'["Ping", null]', b'["Ping", []]', b'["Ping", {}]', b'["Ping", {"sent_ns": "1"}]', b'["Done", []]',
    b'["Ping", {"sent_ns": true}]', b'["Ping", {"sent_ns": 1e3}]', b'["Finish", {"cause": "x", "exit_code": 1}]',
    b'["Ping", {"sent_ns": ' + b"9" * 5000 + b"}]", b"[" * 100_000, b'["Ping", ' + b'{"a":' * 100_000,
    b'["Welcome", {"proof": "", "server_index": 0, "run_name": "", "silence_s": ' + b"9" * 400 + b"}]",
    b'["Hello", {"proof": ' + b"[" * 900 + b"]" * 900 + b', "nonce": "", "version": "", "python": "", "host": "", '
    b'"addresses": []}]',
], ids=lambda line: repr(line[:40]))  # fmt: skip
def test_what_is_no_message_is_refused_in_few_words(line):
    with pytest.raises(ValueError, match=r"^not a valid ") as caught:
        from_line(line)
    assert len(str(caught.value)) < 500


def test_only_who_knows_the_token_can_prove_it():
    right = ("secret", "a", "b")
    proof = proof_of(*right)
    assert is_proof(proof, *right)
    assert not is_proof("", *right)
    assert not any(is_proof(proof, *each) for each in (("other", "a", "b"), ("secret", "b", "a"), ("secret", "a", "c")))


@pytest.mark.parametrize("odd", ["\ud800", "é", "", "\0"], ids=repr)
def test_any_text_can_be_a_proof_a_nonce_or_a_token(odd):
    (text,) = json.loads(json.dumps([odd]))
    assert not is_proof(text, "secret", "a", "b")
    assert is_proof(proof_of("secret", text, "b"), "secret", text, "b")
    assert is_proof(proof_of(text, "a", "b"), text, "a", "b")
