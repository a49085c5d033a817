"""Whether all servers have the same program: pure, by digests."""

import json
import sys
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_starter import JoinBarrier
from launcher.cluster.program_check import answer_to, odd_programs, programs_of, question, refusal
from launcher.core.messages import Begin
from launcher.core.records import Device, Server

SERVERS = tuple(Server(f"h{index + 1}", (Device(0, index),)) for index in range(4))
SAME = {"train.py": "a", "util.py": "b"}


def test_the_same_files_with_the_same_content_are_no_finding():
    assert odd_programs({0: SAME, 1: dict(SAME)}, SERVERS) is None
    assert odd_programs({0: {}, 1: {}}, SERVERS) is None
    assert odd_programs({}, SERVERS) is None


@pytest.mark.parametrize(
    ("programs", "servers", "told"),
    [
        (
            {0: SAME, 1: {**SAME, "train.py": "x"}}, (1,),
            "the program is not the same on server h2 as on server h1: train.py differs",
        ),
        (
            {0: {**SAME, "util.py": "x"}, 1: SAME, 2: SAME}, (0,),
            "the program is not the same on server h1 as on server h2: util.py differs",
        ),
        (
            {0: SAME, 1: {**SAME, "new.py": "c"}, 2: {}, 3: SAME}, (1, 2),
            "the program is not the same on servers h2, h3 as on server h1: new.py, train.py, util.py differ",
        ),
        (
            {0: {f"m{n}.py": "a" for n in range(9)}, 1: {f"m{n}.py": "b" for n in range(9)}}, (1,),
            "the program is not the same on server h2 as on server h1: m0.py, m1.py, m2.py and 6 more files differ",
        ),
        (
            {0: {"b.py": "1"}, 1: {"b.py": "2", "a.py": "1"}}, (1,),
            "the program is not the same on server h2 as on server h1: b.py, a.py differ",
        ),
    ],
    ids=["one file", "most count", "several servers", "many files", "what all have comes first"],
)  # fmt: skip
def test_servers_that_differ_from_most_are_named_with_the_first_files(programs, servers, told):
    odd = odd_programs(programs, SERVERS)
    assert (odd.servers, odd.message) == (servers, told)
    error = refusal(programs, SERVERS)
    assert (error.exit_code, error.message) == (3, told)
    assert "--allow-different-program" in error.hint


def test_agents_that_are_ready_with_different_programs_are_not_begun_with(house, knocks):
    """What each has said with its first words is compared once all have come."""
    opened = house(brings_all=True)
    first, second = knocks.join(opened), knocks.join(opened, host="h2", addresses=("10.0.0.2",))
    opened.attend(lambda: first.done() and second.done())
    gathering = JoinBarrier(opened.plan, opened.registration, 0)
    starts = [knocks.wait(first.result(), program=SAME)]
    opened.attend(lambda: opened.registration.peers[0].ready)
    assert gathering.in_vain(None) is None
    starts.append(knocks.wait(second.result(), program={**SAME, "util.py": "x"}))
    opened.attend(lambda: opened.registration.complete)
    assert "util.py differs" in gathering.in_vain(None).message
    for peer in opened.registration.peers.values():
        peer.send(Begin(0, 4711))
    assert all(start.result(60) for start in starts)


def test_servers_may_have_different_programs_where_somebody_says_so(house, knocks):
    opened = house(same_program=False)
    first, second = knocks.join(opened), knocks.join(opened, host="h2", addresses=("10.0.0.2",))
    opened.attend(lambda: first.done() and second.done())
    starts = [knocks.wait(first.result(), program=SAME), knocks.wait(second.result(), program={})]
    opened.attend(lambda: opened.registration.complete)
    assert opened.registration.unlike() is None
    for peer in opened.registration.peers.values():
        peer.send(Begin(0, 4711))
    assert all(start.result(60) for start in starts)


def test_what_an_examination_asks_is_answered_by_digests_and_tells_no_secret(tmp_path):
    """Of the run's variables only those that say where modules are."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "util.py").write_text("")
    (tmp_path / "train.py").write_text("import util")
    request = SimpleNamespace(cwd=tmp_path, user_env={"PYTHONPATH": str(tmp_path / "library"), "TOKEN": "secret"})
    asked = question((sys.executable, "train.py"), request)
    assert "secret" not in json.dumps(asked)
    answer = answer_to(asked)
    assert set(answer["program"]) == {"train.py", "util.py"}
    assert programs_of({0: answer, 1: {"trouble": "x"}, 2: {"program": None}}) == {0: answer["program"]}
    assert "trouble" in answer_to({"do": "program"})
