"""Rotation: logs stay small while ranks write, and every byte can be read exactly once, at any moment."""

import contextlib
import gzip
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from launcher.logs import rotation
from launcher.logs.index import index_path, parse
from launcher.logs.rotation import Rotator, run
from launcher.logs.stored import StoredLog

WRITER = Path(__file__).parents[1] / "programs" / "log_writer.py"
SHARED_MEMORY = Path("/dev/shm")
MAX_BYTES = 40_000
PATIENCE_S = 60


@pytest.fixture(params=["disk", "tmpfs"])
def log(request, tmp_path):
    """Where a file system cuts bytes out (ext4, xfs), and where it only leaves holes."""
    if request.param == "disk":
        yield tmp_path / "train.log"
    elif not os.access(SHARED_MEMORY, os.W_OK):
        pytest.skip("there is no /dev/shm to write to")
    else:
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
            yield Path(folder) / "train.log"


@pytest.fixture
def rotator(log):
    made = Rotator({0: log}, MAX_BYTES)
    yield made
    made.close()


def lines(first, behind):
    return b"".join(b"%06d\n" % number for number in range(first, behind))


def append(log, data):
    with log.open("ab") as file:
        file.write(data)


def stored(log):
    """All that can be read, and where it begins."""
    reader = StoredLog(log)
    start = reader.start
    text = b"".join(chunk for _, chunk in reader.chunks(start))
    assert reader.end == reader.next_offset
    reader.close()
    return start, text


def on_disk_bytes(log):
    return log.stat().st_blocks * 512


def names(folder):
    return {path.name for path in folder.iterdir()}


def needs_freeing(log, rotator):
    """Skip where the file system under the temporary folder frees nothing."""
    if any("cannot free" in warning for warning in rotator.warnings()):
        pytest.skip("the file system cannot free the start of a file")


def test_a_log_that_grows_stays_small(log, rotator):
    """Whatever is written, the live file takes less than half of what is allowed, and all can be read, by zcat too."""
    for turn in range(20):
        append(log, lines(turn * 10_000, turn * 10_000 + 10_000))
        rotator.step()
        needs_freeing(log, rotator)
        assert on_disk_bytes(log) < MAX_BYTES / 2 + 4096
    assert stored(log) == (0, lines(0, 200_000))
    parts = sorted(log.parent.glob("train.log.*.gz"))
    assert len(parts) == 20
    moved = b"".join(gzip.decompress(part.read_bytes()) for part in parts)
    assert lines(0, 200_000).startswith(moved)
    assert len(moved) > len(lines(0, 200_000)) - MAX_BYTES / 2
    assert names(log.parent) == {"train.log", "train.log.parts.json", *(part.name for part in parts)}


def test_a_small_log_is_left_alone(log, rotator):
    """Nothing is made for a log that is missing, or not larger than allowed."""
    assert 0 < rotator.step() <= rotation.LATEST_S
    append(log, b"x" * MAX_BYTES)
    assert 0 < rotator.step() <= rotation.LATEST_S
    assert names(log.parent) == {"train.log"}


@pytest.mark.parametrize("max_bytes", [1, 4096, 8191, 8192, 8193, 12_288])
@pytest.mark.parametrize("size_bytes", [1, 4095, 4096, 4097, 8191, 8192, 8193, 16_384, 100_000])
def test_sizes_around_blocks(log, max_bytes, size_bytes):
    """Only whole blocks can be freed, and never the last one; no size loses a byte or makes an empty part."""
    data = lines(0, 20_000)[:size_bytes]
    append(log, data)
    rotator = Rotator({0: log}, max_bytes)
    rotator.step()
    needs_freeing(log, rotator)
    assert stored(log) == (0, data)
    if size_bytes > max_bytes:
        assert on_disk_bytes(log) <= max(max_bytes / 2, 4096) + 4096
    append(log, data)
    rotator.step()
    assert stored(log) == (0, data * 2)


def test_a_long_log_is_moved_in_portions(log, rotator, monkeypatch):
    """No part is larger than can be read with little effort, and the rest follows at once."""
    monkeypatch.setattr(rotation, "MAX_PART_BYTES", 1 << 16)
    append(log, lines(0, 100_000))
    delays = []
    while on_disk_bytes(log) > MAX_BYTES:
        delays.append(rotator.step())
        needs_freeing(log, rotator)
        assert len(delays) < 20
    assert len(delays) == 11
    assert max(delays[:-1]) <= rotation.SOONEST_S
    assert stored(log) == (0, lines(0, 100_000))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbered", "alike"])
def test_a_crash_anywhere_loses_and_doubles_nothing(log, kind):
    """Killed at any line of its second rotation, it leaves a log that reads the same, and that the next one takes over.

    Where every block is alike, nothing but the marker tells whether bytes were cut out.
    """
    needs_freeing_of_any(log)
    data = lines(0, 20_000) if kind == "numbered" else b"0123456\n" * 17_500
    for point in count(1):
        empty_folder(log.parent)
        append(log, data[:50_000])
        Rotator({0: log}, MAX_BYTES).step()
        append(log, data[50_000:100_000])
        finished = rotate_until_line(log, point)
        assert stored(log) == (0, data[:100_000]), f"after line {point}"
        append(log, data[100_000:])
        assert stored(log) == (0, data), f"after line {point}, and more written"
        successor = Rotator({0: log}, MAX_BYTES)
        successor.step()
        assert successor.warnings() == []
        assert stored(log) == (0, data), f"after line {point}, and another rotation"
        assert on_disk_bytes(log) < MAX_BYTES
        if finished:
            break
    assert point > 100


def needs_freeing_of_any(log):
    """Skip where nothing is ever freed."""
    probe = log.with_name("probe")
    append(probe, b"x" * 2 * MAX_BYTES)
    rotator = Rotator({0: probe}, MAX_BYTES)
    rotator.step()
    needs_freeing(probe, rotator)


def empty_folder(folder):
    for path in folder.iterdir():
        path.unlink()


def rotate_until_line(log, point):
    """A rotation in a process that is killed when it comes to its line number `point`; whether it ended before."""
    child = os.fork()
    if child == 0:
        seen = count(1)

        def trace(frame, event, _argument):
            if event == "line" and next(seen) == point:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace if "/launcher/" in frame.f_code.co_filename else None

        try:
            sys.settrace(trace)
            Rotator({0: log}, MAX_BYTES).step()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def test_many_writers_at_full_speed(log):
    """Every line of 64 processes is read exactly once, while they write and rotation goes on, and afterwards."""
    needs_freeing_of_any(log)
    empty_folder(log.parent)
    line_count = 50_000
    reader, seen = StoredLog(log), bytearray()
    command = [sys.executable, WRITER, log, "64", str(line_count)]
    with rotated_all_the_time(log, 1_000_000), subprocess.Popen(command, stdout=subprocess.DEVNULL) as writer:
        while writer.poll() is None:
            for _, chunk in reader.chunks(reader.next_offset):
                seen += chunk
    assert writer.returncode == 0
    for _, chunk in reader.chunks(reader.next_offset):
        seen += chunk
    reader.close()
    assert len(list(log.parent.glob("*.gz"))) >= 14
    assert stored(log) == (0, bytes(seen))
    assert sorted(int(line[:6]) for line in seen.splitlines()) == list(range(line_count))


@contextlib.contextmanager
def rotated_all_the_time(log, max_bytes):
    """Another process rotates without a pause and in small portions, until the end, and then what is left to do."""
    stop_read, stop_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            rotation.MAX_PART_BYTES = 1 << 18
            rotator = Rotator({0: log}, max_bytes)
            while rotator.step() <= rotation.SOONEST_S or not select.select([stop_read], [], [], 0)[0]:
                pass
        finally:
            os._exit(0)
    yield
    os.write(stop_write, b"x")
    os.waitpid(child, 0)
    os.close(stop_read)
    os.close(stop_write)


READS = 40  # at least, before the second half is rotated; a multiple of four


def test_readers_and_rotation_get_in_each_others_way(log):
    """However often a log is rotated under them, readers of any place get what was written there."""
    step, data = 8192, lines(0, 30_000)
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(go)
            os.read(ready, 1)
            rotator = Rotator({0: log}, step)
            for first in range(step, len(data), step):
                if first >= len(data) // 2:
                    os.read(ready, 1)  # nothing comes; the other end is closed once enough was read
                append(log, data[first : first + step])
                rotator._logs[0]._index = None  # look again at once
                rotator.step()
        finally:
            os._exit(0)
    os.close(ready)
    append(log, data[:step])
    os.write(go, b"x")
    reader, reads = StoredLog(log), 0
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        for offset in (0, reader.end // 2, reader.end - step, reader.end - 100):
            chunk = reader.read(offset, 5000)
            assert chunk == data[offset : offset + len(chunk)]
            reads += 1
        if reads == READS:
            os.close(go)
    reader.close()
    assert reads >= READS
    assert stored(log) == (0, data)


def test_a_rotation_between_any_two_steps_of_a_reader(log, monkeypatch):
    """Whatever a reader has looked at before, it gives what was written at the place that it was asked for."""
    data = lines(0, 20_000)
    for earlier in (0, 60_000):  # whether there is an index before
        for point in range(1, 40):
            empty_folder(log.parent)
            append(log, data[:60_000])
            if earlier:
                Rotator({0: log}, MAX_BYTES).step()
            append(log, data[60_000:])
            before_system_call(monkeypatch, point, Rotator({0: log}, MAX_BYTES).step)
            reader = StoredLog(log)
            place = max(50_000, reader.end - 30_000)
            for offset in (place, place + 1000, 0):
                assert reader.read(offset, 50) == data[offset : offset + 50], f"before call {point}"
            reader.close()
            monkeypatch.undo()


def test_bytes_are_cut_out_between_any_two_steps_of_a_reader(log, monkeypatch):
    """At that moment the index does not change: only the marker tells."""
    data = lines(0, 20_000)
    for line in count(1):
        empty_folder(log.parent)
        append(log, data)
        if rotate_until_line(log, line):
            pytest.skip("the file system does not cut bytes out")
        if index_path(log).exists() and parse(index_path(log).read_bytes()).marker:
            break
    hole_bytes = parse(index_path(log).read_bytes()).hole_bytes
    saved = {path: path.read_bytes() for path in log.parent.iterdir()}
    for point in range(1, 40):
        for path, content in saved.items():
            path.write_bytes(content)
        with log.open("r+b") as live:
            cut_out = partial(rotation._fallocate, live.fileno(), rotation._COLLAPSE_RANGE, 0, hole_bytes)
            before_system_call(monkeypatch, point, cut_out)
            reader = StoredLog(log)
            for offset in (hole_bytes, len(data) - 1000, 0):
                assert reader.read(offset, 50) == data[offset : offset + 50], f"before call {point}"
            reader.close()
            monkeypatch.undo()


def before_system_call(monkeypatch, point, act):
    """`act` once, before the call number `point` of those by which a reader looks at files."""
    seen = count(1)

    def intruded(original):
        def call(*arguments, **options):
            if next(seen) == point:
                act()
            return original(*arguments, **options)

        return call

    for name in ("pread", "fstat", "stat", "open"):
        monkeypatch.setattr(os, name, intruded(getattr(os, name)))


def test_a_log_that_is_emptied(log, rotator):
    """`> train.log` begins the log anew where it was known to end; the parts made before stay on the disk."""
    append(log, lines(0, 20_000))
    rotator.step()
    needs_freeing(log, rotator)
    os.truncate(log, 0)
    assert stored(log) == (140_000, b"")
    append(log, b"new\n")
    assert stored(log) == (140_000, b"new\n")
    rotator.step()
    assert stored(log) == (140_000, b"new\n")
    append(log, lines(0, 20_000))
    assert stored(log) == (140_000, b"new\n" + lines(0, 20_000))
    rotator.step()
    assert stored(log) == (140_000, b"new\n" + lines(0, 20_000))
    assert len(list(log.parent.glob("*.gz"))) == 2


def test_a_log_that_is_emptied_and_grows_beyond_what_it_was(log, rotator):
    """What it begins with tells, though nobody saw it being small."""
    append(log, lines(0, 20_000))
    rotator.step()
    needs_freeing(log, rotator)
    log.write_bytes(lines(500_000, 540_000))
    assert stored(log) == (140_000, lines(500_000, 540_000))
    rotator.step()
    assert stored(log) == (140_000, lines(500_000, 540_000))


def test_a_log_that_is_made_again(log, rotator):
    """It is another log: what it holds is read, and its parts take no name of an old one."""
    append(log, lines(0, 20_000))
    rotator.step()
    needs_freeing(log, rotator)
    log.unlink()
    rotator.step()
    (old,) = log.parent.glob("*.gz")
    before = old.read_bytes()
    append(log, lines(500_000, 540_000))
    rotator.step()
    assert stored(log) == (140_000, lines(500_000, 540_000))
    assert old.read_bytes() == before


def test_a_folder_that_is_copied(log, rotator, tmp_path_factory):
    """A log is known by what it holds, not by where it is: an archive of a run can be read."""
    append(log, lines(0, 20_000))
    rotator.step()
    archive = tmp_path_factory.mktemp("archive")
    subprocess.run(["cp", "-r", log.parent, archive], check=True)
    assert stored(archive / log.parent.name / "train.log") == (0, lines(0, 20_000))


def test_a_full_disk(log):
    """Nothing is freed and no half part stays; it is told once, and done later when there is room."""
    append(log, os.urandom(200_000))
    before = log.read_bytes()
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
            rotator = Rotator({0: log}, MAX_BYTES)
            delays = [rotator.step(), rotator.step()]
            os.write(write_end, json.dumps([delays, rotator.warnings()]).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    (first_s, second_s), warnings = json.loads(os.read(read_end, 10_000))
    os.close(read_end)
    os.close(write_end)
    assert first_s == rotation.RETRY_S
    assert 0 < second_s <= rotation.RETRY_S
    assert len(warnings) == 1
    assert "rank 0" in warnings[0]
    assert "too large" in warnings[0].lower()
    assert names(log.parent) == {"train.log"}
    assert log.read_bytes() == before
    Rotator({0: log}, MAX_BYTES).step()
    assert stored(log) == (0, before)


def test_an_index_that_was_removed(log, rotator):
    """Its parts are not written over by others; where they stand is told by their names."""
    data = lines(0, 60_000)
    append(log, data[: len(data) // 2])
    rotator.step()
    needs_freeing(log, rotator)
    index_path(log).unlink()
    append(log, data[len(data) // 2 :])
    Rotator({0: log}, MAX_BYTES).step()
    assert stored(log) == (0, data)


def test_an_index_that_makes_no_sense(log, rotator):
    """Nobody knows then what is in parts: nothing is moved, and it is told."""
    append(log, lines(0, 20_000))
    index_path(log).write_text('{"schema": 99}')
    rotator.step()
    assert "index" in rotator.warnings()[0]
    assert log.read_bytes() == lines(0, 20_000)
    assert stored(log) == (0, lines(0, 20_000))


def test_one_broken_log_does_not_keep_the_others_large(log, tmp_path):
    """Every log is looked after by itself."""
    append(log, lines(0, 20_000))
    broken = tmp_path / "broken.log"
    append(broken, lines(0, 20_000))
    index_path(broken).write_text("{")
    rotator = Rotator({0: broken, 1: log}, MAX_BYTES)
    rotator.step()
    assert len(list(log.parent.glob("train.log.*.gz"))) == 1


def test_a_second_rotator_leaves_a_log_alone(log, rotator):
    """While one process rotates a log, another one does nothing and waits for nothing."""
    append(log, lines(0, 20_000))
    with rotation._locked(log) as live:
        assert live is not None
        assert 0 < rotator.step() <= rotation.LATEST_S
    assert names(log.parent) == {"train.log"}
    assert rotator.warnings() == []
    rotator.step()
    assert len(names(log.parent)) == 3


def test_two_rotators_take_turns(log):
    """Each goes by what the other has noted."""
    rotators = [Rotator({0: log}, MAX_BYTES) for _ in range(2)]
    for turn in range(10):
        append(log, lines(turn * 10_000, turn * 10_000 + 10_000))
        rotators[turn % 2].step()
        rotators[1 - turn % 2].step()
    assert stored(log) == (0, lines(0, 100_000))


def test_it_runs_until_it_is_told_to_stop(log):
    """Closing the other end of a pipe is enough; warnings are handed on."""
    append(log, lines(0, 20_000))
    index_path(log).write_text("{")
    stop_read, stop_write = os.pipe()
    told = []
    rotating = threading.Thread(target=run, args=(Rotator({7: log}, MAX_BYTES), stop_read, told.append))
    rotating.start()
    deadline_s = time.monotonic() + PATIENCE_S
    while not told and time.monotonic() < deadline_s:
        time.sleep(0.01)
    os.close(stop_write)
    rotating.join(PATIENCE_S)
    os.close(stop_read)
    assert not rotating.is_alive()
    assert "rank 7" in told[0]


def test_a_rotator_that_is_closed_does_nothing(log, rotator):
    """And may be closed twice."""
    append(log, lines(0, 20_000))
    rotator.close()
    with contextlib.closing(rotator):
        assert rotator.step() == rotation.LATEST_S
    assert names(log.parent) == {"train.log"}


def test_finishing_makes_every_log_small_and_waits_for_none(log, tmp_path):
    """One that cannot be made smaller is tried once, and those behind it are finished all the same."""
    logs = {0: tmp_path / "broken.log", 1: log, 2: tmp_path / "locked.log", 3: tmp_path / "missing.log"}
    for number in range(3):
        append(logs[number], lines(0, 200_000))
    index_path(logs[0]).write_text("{")
    rotator = Rotator(logs, MAX_BYTES)
    rotator.step()
    append(log, lines(200_000, 400_000))
    with rotation._locked(logs[2]):
        append(logs[2], lines(200_000, 400_000))
        before_s = time.process_time()
        rotator.finish()
    assert on_disk_bytes(log) < MAX_BYTES
    assert len(rotator.warnings()) == 1
    assert time.process_time() - before_s < rotation.RETRY_S / 2  # it does not try again and again


def test_a_reason_is_told_once(tmp_path):
    """Of many logs on one full disk one is enough."""
    logs = {number: tmp_path / f"{number}.log" for number in range(5)}
    for log in logs.values():
        append(log, lines(0, 20_000))
        index_path(log).write_text("{")
    rotator = Rotator(logs, MAX_BYTES)
    rotator.step()
    (warning,) = rotator.warnings()
    assert "rank 0 first" in warning


def test_a_rotation_that_is_broken_off_leaves_no_part_that_nobody_knows(log, monkeypatch):
    """An exception that is no error, as a signal raises one, between the part and its entry in the index."""

    class AskedToEnd(BaseException):
        pass

    def raise_it(*_arguments):
        raise AskedToEnd

    append(log, lines(0, 20_000))
    for place in ("save", "noted"):
        with monkeypatch.context() as context:
            context.setattr(rotation, place, raise_it)
            with pytest.raises(AskedToEnd):
                Rotator({0: log}, MAX_BYTES).step()
        assert names(log.parent) == {"train.log"}
    assert stored(log) == (0, lines(0, 20_000))


@pytest.mark.parametrize(
    "fields",
    [
        {"freed": 5.5},
        {"kept_bytes": "x"},
        {"marker": 5},
        {"renewals": "a"},
        {"parts": ["0"]},
        {"base": True},
        {"head": -1},
    ],
)
def test_an_index_of_other_types_is_none(log, rotator, fields):
    """Readers show the log as it is, and the rotator leaves it alone."""
    append(log, lines(0, 20_000))
    whole = {"schema": 1, "base": 0, "freed": 0, "parts": [], "kept_bytes": 0, "head": 0, "renewals": 0, "marker": None}
    index_path(log).write_text(json.dumps({**whole, **fields}))
    rotator.step()
    assert len(rotator.warnings()) == 1
    assert stored(log) == (0, lines(0, 20_000))
