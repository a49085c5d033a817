"""A whole examination: a process per server, on this machine. On several hosts: tests/end_to_end/test_doctor.py."""

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.cli.commands.doctor.report import report_lines
from launcher.core.records import Cluster, Device, Server
from launcher.doctor.examine import Wish, examine
from launcher.doctor.examinee import Examinee
from launcher.doctor.findings import judge

ROOT = Path(__file__).parents[2]
EXAMINEE = ROOT / "tests" / "programs" / "doctor_examinee.py"


class Pipes:
    """Messages go down the stdin of a process for each server; what a process does not answer, it ends without."""

    def __init__(self, processes):
        self.processes = processes

    def ask(self, messages):
        for index, message in messages.items():
            if self.processes[index].poll() is None:
                self.processes[index].stdin.write(json.dumps(message) + "\n")
                self.processes[index].stdin.flush()
        lines = {index: self.processes[index].stdout.readline() for index in messages}
        return {index: json.loads(line) for index, line in lines.items() if line}

    def offsets_s(self):
        return dict.fromkeys(range(len(self.processes)), 0.0)


@contextmanager
def examinees(count):
    processes = [
        subprocess.Popen(
            [sys.executable, str(EXAMINEE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for _ in range(count)
    ]
    try:
        yield Pipes(processes)
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def cluster_of(*names):
    return Cluster(tuple(Server(name, (Device(0, index),)) for index, name in enumerate(names)))


def found(examination):
    findings = judge(
        examination.cluster, examination.facts, examination.reach, examination.offsets_s, examination.troubles
    )
    print("\n".join(report_lines(examination, findings)))
    return {(one.code, one.servers) for one in findings if one.severity.value != "note"}


@pytest.fixture
def wish(tmp_path):
    (tmp_path / "table.json").write_text("{}")
    return Wish(
        cwd=tmp_path, runs_dir=tmp_path / "runs", table=tmp_path / "table.json", ports=(29611,),
        reach_timeout_s=60.0,  # nobody is asked who never answers
    )  # fmt: skip


def test_servers_of_one_machine_reach_each_other_and_are_found_out(wish):
    """Each is a process; all facts come back, and every ordered pair is tried, and each by itself."""
    with examinees(3) as transport:
        examination = examine(cluster_of("127.0.0.1", "127.0.0.2", "127.0.0.3"), wish, transport)
    assert sorted(examination.facts) == [0, 1, 2]
    assert [len(facts.ports) for _, facts in sorted(examination.facts.items())] == [1, 0, 0]
    assert {(index, one.server) for index, tried in examination.reach.items() for one in tried if one.reached} == {
        (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (0, 0), (1, 1), (2, 2),
    }  # fmt: skip
    assert all(one.got_large == (one.server != index) for index, tried in examination.reach.items() for one in tried)
    assert ("one-machine", (0, 1, 2)) in found(examination)


def test_a_server_that_ends_is_told_of_and_the_others_are_examined(wish):
    """Nobody tries to reach it."""
    with examinees(3) as transport:
        transport.processes[1].kill()
        transport.processes[1].wait()
        examination = examine(cluster_of("127.0.0.1", "127.0.0.2", "127.0.0.3"), wish, transport)
    assert sorted(examination.facts) == sorted(examination.reach) == [0, 2]
    assert ("no-answer", (1,)) in found(examination)


class Fading(Pipes):
    """Server 1 ends once it has been asked for its facts."""

    def ask(self, messages):
        answers = super().ask(messages)
        self.processes[1].kill()
        self.processes[1].wait()
        return answers


def test_a_server_that_ends_in_the_midst_of_it_is_told_of_too(wish):
    """Its facts are kept."""
    with examinees(3) as transport:
        examination = examine(cluster_of("127.0.0.1", "127.0.0.2", "127.0.0.3"), wish, Fading(transport.processes))
    assert (sorted(examination.facts), sorted(examination.reach)) == ([0, 1, 2], [0, 2])
    assert examination.troubles == {1: "it answered at first, and then no more"}
    assert ("no-answer", (1,)) in found(examination)


class Garbling(Pipes):
    """Server 1 answers in another language."""

    def ask(self, messages):
        kind = next(iter(messages.values()))["do"]
        wrong = {
            "collect": {"facts": {"hostname": 7}},
            "listen": {"port": 9},
            "reach": {"attempts": [{"outcome": "sunk"}]},
        }
        return {**super().ask(messages), **({1: wrong[kind]} if kind == self.when else {})}


@pytest.mark.parametrize("when", ["collect", "reach"])
def test_an_answer_that_cannot_be_read_is_the_trouble_of_its_server(wish, when):
    """The others are examined as ever."""
    with examinees(2) as transport:
        garbling = Garbling(transport.processes)
        garbling.when = when
        examination = examine(cluster_of("127.0.0.1", "127.0.0.2"), wish, garbling)
    assert examination.troubles[1].startswith("its answer cannot be read")
    assert 0 in examination.facts


def test_one_server_alone_is_asked_for_its_facts_only(wish):
    """There is nobody to reach."""
    with examinees(1) as transport:
        examination = examine(cluster_of("127.0.0.1"), wish, transport)
    assert (list(examination.facts), dict(examination.reach)) == ([0], {})


def test_a_message_of_another_version_is_answered_by_what_is_wrong():
    """No server dies of it."""
    examinee = Examinee()
    assert "unknown message 'dance'" in examinee.answer({"do": "dance"})["trouble"]
    assert "KeyError" in examinee.answer({"do": "collect"})["trouble"]
    assert "TypeError" in examinee.answer({"do": "collect", "request": {"cwd": 7}})["trouble"]
    assert examinee.fileno() == -1
    examinee.close()


def test_what_a_name_means_is_asked_once(monkeypatch, tmp_path):
    """Who tries to reach a server takes what was found when there was time for a name server that is dead."""
    examinee = Examinee()
    examinee.answer({"do": "collect", "request": {"names": ["localhost"], "cwd": str(tmp_path)}})
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: pytest.fail("asked again"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        target = {"server": 1, "host": "localhost", "port": bound.getsockname()[1]}
        answer = examinee.answer({"do": "reach", "targets": [target], "secret": "x", "timeout_s": 5.0})
    assert [attempt["outcome"] for attempt in answer["attempts"]] == ["refused"]
