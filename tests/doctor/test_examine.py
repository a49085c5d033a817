"""A whole examination: a handler per server, in this process. On several hosts: tests/end_to_end/test_doctor.py."""

import socket
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.doctor.examine import ExaminationRequest, examine
from launcher.doctor.finding import Evidence
from launcher.doctor.probe_handler import ProbeHandler
from launcher.doctor.rules import judge

PATIENCE_S = 60.0


class Transport:
    """Hands messages to a handler for each server; `gone` servers do not answer, `answers` replace what others say."""

    def __init__(self, count):
        self.handlers = [ProbeHandler() for _ in range(count)]
        self.gone = set()
        self.gone_after = {}  # messages
        self.answers = {}  # by what a server was asked to do

    def ask(self, messages):
        kind = next(iter(messages.values()))["do"]
        asked = {index: message for index, message in messages.items() if index not in self.gone}
        with ThreadPoolExecutor(len(self.handlers)) as pool:
            futures = {index: pool.submit(self.handlers[index].answer, message) for index, message in asked.items()}
            while not all(future.done() for future in futures.values()):
                for index, future in futures.items():
                    if future.done():  # who has ended its own tries
                        self.handlers[index].serve()
                wait(futures.values(), 0.001)
        self.gone |= self.gone_after.get(kind, set())
        return {index: future.result() for index, future in futures.items()} | self.answers.get(kind, {})

    def offsets_s(self):
        return dict.fromkeys(range(len(self.handlers)), 0.0)


@pytest.fixture
def examined(tmp_path):
    """Give a function that examines the servers of a transport, of which each has an address of this machine."""
    table = tmp_path / "table.json"
    table.write_text("{}")
    wish = ExaminationRequest(
        cwd=tmp_path, runs_dir=tmp_path / "runs", table=table, ports=(29611,), reach_timeout_s=PATIENCE_S
    )

    used = []

    def examined(transport):
        used.append(transport)
        names = [f"127.0.0.{index + 1}" for index in range(len(transport.handlers))]
        cluster = Cluster(tuple(Server(name, (Device(0, index),)) for index, name in enumerate(names)))
        return examine(cluster, wish, transport)

    yield examined
    for transport in used:
        for handler in transport.handlers:
            handler.close()


def found(examination):
    evidence = Evidence(
        examination.cluster, examination.facts, examination.reach, examination.offsets_s, examination.troubles
    )
    return {(one.code, one.servers) for one in judge(evidence) if one.severity.value != "note"}


def test_servers_of_one_machine_reach_each_other_and_are_found_out(examined):
    examination = examined(Transport(3))
    assert sorted(examination.facts) == [0, 1, 2]
    assert [len(facts.ports) for _, facts in sorted(examination.facts.items())] == [1, 0, 0]
    tried = [(index, one) for index, attempts in examination.reach.items() for one in attempts]
    assert {(index, one.server) for index, one in tried if one.reached} == {(a, b) for a in range(3) for b in range(3)}
    assert all(one.got_large == (one.server != index) for index, one in tried)
    assert ("one-machine", (0, 1, 2)) in found(examination)


def test_a_server_that_does_not_answer_is_found_and_the_others_are_examined(examined):
    transport = Transport(3)
    transport.gone_after["collect"] = {1}
    examination = examined(transport)
    assert (sorted(examination.facts), sorted(examination.reach)) == ([0, 1, 2], [0, 2])
    assert examination.troubles == {1: "it stopped answering"}
    assert ("no-answer", (1,)) in found(examination)
    examination = examined(transport)
    assert sorted(examination.facts) == sorted(examination.reach) == [0, 2]
    assert ("no-answer", (1,)) in found(examination)


@pytest.mark.parametrize(("kind", "answer", "trouble"), [
    ("collect", {"facts": {"hostname": 7}}, "its answer cannot be read"),
    ("collect", {"sense": None}, "its answer has no facts"),
    ("listen", {"port": "x"}, "its answer cannot be read"),
    ("reach", {"attempts": [{"outcome": "sunk"}]}, "its answer cannot be read"),
    ("reach", {"trouble": "OSError: disk"}, "OSError: disk"),
])  # fmt: skip
def test_an_answer_that_cannot_be_read_is_the_trouble_of_its_server(examined, kind, answer, trouble):
    transport = Transport(2)
    transport.answers[kind] = {1: answer}
    examination = examined(transport)
    assert examination.troubles[1].startswith(trouble)
    assert 0 in examination.facts


def test_one_server_alone_is_asked_for_its_facts_only(examined):
    examination = examined(Transport(1))
    assert (list(examination.facts), dict(examination.reach)) == ([0], {})


def test_a_message_of_another_version_is_answered_by_what_is_wrong():
    handler = ProbeHandler()
    assert "unknown message 'dance'" in handler.answer({"do": "dance"})["trouble"]
    assert "KeyError" in handler.answer({"do": "collect"})["trouble"]
    assert "ValueError" in handler.answer({"do": "collect", "request": {"cwd": 7}})["trouble"]
    assert handler.fileno() == -1
    handler.close()


def test_a_handler_removes_directories_of_examinations_alone(tmp_path):
    handler = ProbeHandler()
    runs_dir = tmp_path / "runs" / ".doctor-0123"
    runs_dir.mkdir(parents=True)
    (runs_dir / "links.json").write_text('{"world_size": 2}')
    assert handler.answer({"do": "links", "run_dir": str(runs_dir)}) == {"links": {"world_size": 2}}
    assert handler.answer({"do": "forget", "runs_dir": str(runs_dir.parent), "parent": True}) == {"forgotten": False}
    assert handler.answer({"do": "forget", "runs_dir": str(runs_dir), "parent": True}) == {"forgotten": True}
    assert list(tmp_path.iterdir()) == []
    assert "FileNotFoundError" in handler.answer({"do": "links", "run_dir": str(runs_dir)})["trouble"]


def test_a_name_is_resolved_once(monkeypatch, tmp_path):
    handler = ProbeHandler()
    handler.answer({"do": "collect", "request": {"names": ["localhost"], "cwd": str(tmp_path)}})
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: pytest.fail("asked again"))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        target = {"server": 1, "host": "localhost", "port": bound.getsockname()[1]}
        answer = handler.answer({"do": "reach", "targets": [target], "secret": "x", "timeout_s": 5.0})
    assert [attempt["outcome"] for attempt in answer["attempts"]] == ["refused"]
