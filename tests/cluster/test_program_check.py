"""Whether all servers have the same program: pure, by digests."""

import json
import sys
from types import SimpleNamespace

import pytest

from launcher.cluster.agent_starter import JoinBarrier
from launcher.cluster.program_check import answer_to, odd_programs, programs_of, question
from launcher.control.messages import BeginAttempt
from tests.servers import servers

SERVERS = servers("h1", "h2", "h3", "h4")
SAME = {"train.py": "a", "util.py": "b"}


def test_the_same_files_with_the_same_content_are_no_finding():
    assert odd_programs({0: SAME, 1: dict(SAME)}, SERVERS) is None
    assert odd_programs({0: {}, 1: {}}, SERVERS) is None
    assert odd_programs({}, SERVERS) is None


MANY = [{f"m{number}.py": digest for number in range(9)} for digest in "ab"]


@pytest.mark.parametrize(("programs", "odd", "differ"), [
    ((SAME, {**SAME, "train.py": "x"}), (1,), "server h2 as on server h1: train.py differs"),
    (({**SAME, "util.py": "x"}, SAME, SAME), (0,), "server h1 as on server h2: util.py differs"),
    (
        (SAME, {**SAME, "new.py": "c"}, {}, SAME), (1, 2),
        "servers h2, h3 as on server h1: new.py, train.py, util.py differ",
    ),
    (MANY, (1,), "server h2 as on server h1: m0.py, m1.py, m2.py and 6 more files differ"),
    # What all have comes first.
    (({"b.py": "1"}, {"b.py": "2", "a.py": "1"}), (1,), "server h2 as on server h1: b.py, a.py differ"),
], ids=["one file", "most count", "several servers", "many files", "common first"])  # fmt: skip
def test_servers_that_differ_from_most_are_named_with_the_first_files(programs, odd, differ):
    programs = dict(enumerate(programs))
    found = odd_programs(programs, SERVERS)
    assert (found.servers, found.message) == (odd, f"the program is not the same on {differ}")
    assert "--allow-different-program" in found.hint


@pytest.mark.parametrize("same_program", [True, False])
def test_agents_that_are_ready_with_different_programs_are_not_begun_with_unless_allowed(house, agents, same_program):
    opened = house(brings_all=True, same_program=same_program)
    first, second = agents.join_both(opened)
    barrier = JoinBarrier(opened.plan, opened.registration, 0)
    starts = [agents.wait(first, program=SAME)]
    opened.attend(lambda: opened.registration.peers[0].ready)
    assert barrier.failure(None) is None
    starts.append(agents.wait(second, program={**SAME, "util.py": "x"}))
    opened.attend(lambda: opened.registration.complete)
    if same_program:
        error = barrier.failure(None)
        assert "util.py differs" in error.message
        assert "--allow-different-program" in error.hint
        assert error.exit_code == 3
    else:
        assert opened.registration.unlike() is None
    for peer in opened.registration.peers.values():
        peer.send(BeginAttempt(0, 4711))
    assert all(start.result(60) for start in starts)


def test_what_an_examination_asks_is_answered_by_digests_and_shows_no_secret(tmp_path):
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
