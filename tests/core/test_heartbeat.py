"""Signs of life, as ranks write them and others read them."""

import math
import os
import threading
from fractions import Fraction

import pytest

from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.heartbeat import Beat, beat, read_heartbeat, touch


@pytest.fixture(name="file")
def _file(tmp_path):
    return tmp_path / "heartbeat"


@pytest.fixture(name="environment")
def _environment(file):
    return {TLAUNCH_HEARTBEAT_FILE: str(file)}


def test_what_is_written_is_read(file, environment):
    assert read_heartbeat(file) is None
    for values in (Beat(12, 0.41, 3.2, 5100.0, 73400320), Beat(step=13), Beat()):
        beat(environment, values)
        assert read_heartbeat(file).beat == values
    assert read_heartbeat(file).time_ns == file.stat().st_mtime_ns
    assert file.read_text().split() == ["{}"]  # a shorter beat leaves nothing of a longer one


def test_a_beat_tells_which_process_has_worked(file, environment):
    for values, pid in ((Beat(1, busy_s=0.4), os.getpid()), (Beat(2), None)):
        beat(environment, values)
        assert read_heartbeat(file).pid == pid


def test_touching_keeps_the_beat_and_makes_the_first_file(file, environment):
    touch(environment)
    assert read_heartbeat(file).beat == Beat()
    beat(environment, Beat(step=5))
    os.utime(file, ns=(0, 0))
    touch(environment)
    assert read_heartbeat(file).beat == Beat(step=5)
    assert read_heartbeat(file).time_ns > 0


@pytest.mark.parametrize("name", [None, "", "gone/heartbeat", ".", "x" * 300, "nul\0", "lone\ud800"])
def test_a_file_that_cannot_be_written_costs_the_beat_only(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    environment = {} if name is None else {TLAUNCH_HEARTBEAT_FILE: name}
    beat(environment, Beat(step=1))
    touch(environment)
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_in_its_place_keeps_nobody_waiting(file, environment):
    os.mkfifo(file)
    beat(environment, Beat(step=1))
    touch(environment)
    assert read_heartbeat(file) is None
    assert read_heartbeat(file.parent) is None


class Whole(Fraction):
    def __index__(self):
        return int(self)


class Broken:
    def __float__(self):
        raise RuntimeError("on another device")

    __index__ = __str__ = __repr__ = __float__


@pytest.mark.parametrize(("values", "expected"), [
    (Beat(step=Whole(3), loss=Whole(2)), Beat(step=3, loss=2.0)),
    (Beat(step=4, loss=Fraction(5, 2)), Beat(step=4, loss=2.5)),
    (Beat(step=5, loss=Broken(), busy_s="soon", tokens_per_s=[1], device_memory_bytes={1}), Beat(step=5)),
    (Beat(step=10**5000, busy_s=10**400, device_memory_bytes=1 << 63), Beat()),
])  # fmt: skip
def test_numbers_of_other_libraries_are_written_as_plain_ones(file, environment, values, expected):
    beat(environment, values)
    assert read_heartbeat(file).beat == expected


@pytest.mark.parametrize(("text", "expected"), [
    (b"", Beat()), (b"\xff\xfe", Beat()), (b"[" * 4000, Beat()), (b"[1, 2]", Beat()), (b'{"step": ', Beat()),
    (b'{"step": "4", "busy_s": true, "loss": null}', Beat()),
    (b'{"step": 4.5, "busy_s": 1e999, "tokens_per_s": -Infinity}', Beat()),
    (b'{"step": 1' + b"0" * 400 + b', "loss": 1}', Beat(loss=1.0)),
    (b'{"step": 4, "loss": Infinity}', Beat(step=4, loss=math.inf)),
    (b'\n {\n"step": 4,\n"more": {}}\n', Beat(step=4)),
    (b'{"step": 4}\nrest of a longer one\xff"}', Beat(step=4)),
    (b'{"step": 3}\n', Beat(step=3)),  # as a shell's echo, the example of the documentation
])  # fmt: skip
def test_whatever_a_program_writes_is_understood_as_far_as_it_goes(file, text, expected):
    file.write_bytes(text)
    assert read_heartbeat(file).beat == expected


def test_a_reader_always_finds_a_beat(file, environment):
    beat(environment, Beat(step=1))

    def write():
        for step in range(1000):
            beat(environment, Beat(step=10**9 if step % 2 else 1, busy_s=0.5))

    writer, found = threading.Thread(target=write), set()
    writer.start()
    while writer.is_alive():
        found.add(read_heartbeat(file).beat.step)
    assert found <= {1, 10**9}
