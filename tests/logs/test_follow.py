"""Follow growing logs: every line once, in order, whatever the writer does."""

import os
import resource
import threading
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.logs import follow as module
from launcher.logs.follow import Changes, Follower
from launcher.logs.lines import PIECE_BYTES
from launcher.logs.log_file import CHUNK_BYTES, GrowingLog
from tests.conftest import wait_until

from .conftest import append


@pytest.fixture
def follow():
    made = []

    def follower_of(logs):
        made.append(Follower({rank: GrowingLog(log) for rank, log in logs.items()}))
        return made[-1]

    yield follower_of
    for follower in made:
        follower.close()


@pytest.fixture
def follower(follow, log):
    return follow({3: log})


def poll(follower, **options):
    seen = []
    while block := follower.next_block(**options):
        rank, lines = block
        seen += [(rank, line) for line in lines.decode().removesuffix("\n").split("\n")]
    return seen


def test_a_log_that_does_not_exist_yet(log, follower):
    assert poll(follower) == []
    append(log, b"one\ntwo\n")
    seen = []
    wait_until(lambda: seen.extend(poll(follower)) or len(seen) == 2 or follower.wait(1), "both lines")
    assert seen == [(3, "one"), (3, "two")]
    assert poll(follower) == []


def test_an_unfinished_line_waits_for_its_end(log, follower):
    append(log, b"hal")
    assert poll(follower) == []
    append(log, b"f\nlast")
    assert poll(follower) == [(3, "half")]
    assert poll(follower, ended=True) == [(3, "last")]


def test_a_line_without_end_is_given_in_pieces(log, follower):
    append(log, b"x" * (5 * PIECE_BYTES + 7) + b"\nnext\n")
    lines = [line for _, line in poll(follower, ended=True)]
    assert lines[-1] == "next"
    assert sum(map(len, lines[:-1])) == 5 * PIECE_BYTES + 7
    assert max(map(len, lines)) <= 2 * PIECE_BYTES


def test_a_log_that_is_emptied_at_the_end(log, follower):
    """What it holds since then is not forgotten when nobody writes any more."""
    append(log, b"a long first line\nand a hal")
    assert poll(follower) == [(3, "a long first line")]
    os.truncate(log, 0)
    append(log, b"new\nlast")
    assert poll(follower, ended=True) == [(3, "and a hal"), (3, "new"), (3, "last")]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("made", [True, False])
def test_a_log_that_is_renamed(log, follower, monkeypatch, made, local):
    """As by logrotate: the rank still writes to the old file, and a change of that is noticed."""
    if not local:
        monkeypatch.setattr(module, "LOCAL", frozenset())
    append(log, b"one\n")
    assert poll(follower) == [(3, "one")]
    old = log.rename(log.with_name("train.log.1"))
    if made:
        log.touch()
    for number in range(3):
        append(old, b"%d\n" % number)
        assert wait_until(lambda: poll(follower), "the line") == [(3, f"{number}")]
    append(log, b"new\n")
    assert wait_until(lambda: poll(follower), "the new file's line") == [(3, "new")]


def test_logs_take_turns_in_small_portions(follow, tmp_path):
    logs = {rank: tmp_path / f"{rank}.log" for rank in (0, 1)}
    for log in logs.values():
        append(log, b"0123456789abcde\n" * 20_000)
    follower = follow(logs)
    portions = [(rank, block.splitlines()) for rank, block in (follower.next_block() for _ in range(4))]
    assert [rank for rank, _ in portions] == [0, 1, 0, 1]
    assert all(len(lines) <= 2 * CHUNK_BYTES / 16 for _, lines in portions)
    assert sum(len(lines) for _, lines in portions) + len(poll(follower)) == 40_000


def test_only_the_end_of_what_is_unread(log, follower):
    append(log, b"shown\nhal")
    assert poll(follower) == [(3, "shown")]
    append(log, b"f\n" + b"".join(b"%07d\n" % number for number in range(1000)))
    assert list(follower.skip_to_last(100)) == [(3, len("half\n") + 8 * 988)]
    assert poll(follower) == [(3, f"{number:07d}") for number in range(988, 1000)]
    assert list(follower.skip_to_last(100)) == []


def test_a_line_longer_than_what_is_kept(log, follower):
    """Without the start of a line to begin at, the last bytes are shown all the same or counted as left out."""
    append(log, b"x" * 1000)
    ((_, skipped),) = follower.skip_to_last(100)
    assert skipped + sum(len(line) for _, line in poll(follower, ended=True)) == 1000


@given(
    st.lists(st.text(st.characters(exclude_categories=["C"])), max_size=20), st.lists(st.integers(0, 400), max_size=8)
)
def test_any_way_of_writing_gives_the_same_lines(tmp_path_factory, lines, cuts):
    log = tmp_path_factory.mktemp("follow") / "train.log"
    data = "".join(f"{line}\n" for line in lines).encode()
    with closing(Follower({0: GrowingLog(log)})) as follower:
        seen = []
        for first, last in pairwise([0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]):
            append(log, data[first:last])
            seen += poll(follower)
        assert [line for _, line in seen + poll(follower, ended=True)] == lines


def test_what_others_do_not_need_is_not_left_out(follow, tmp_path):
    """The bytes to keep are those of all logs together."""
    logs = {rank: tmp_path / f"{rank}.log" for rank in range(10)}
    for log in logs.values():
        append(log, b"short\n")
    append(logs[3], b"0123456789abcde\n" * 1000)
    follower = follow(logs)
    assert list(follower.skip_to_last(20_000)) == []
    ((rank, skipped),) = follower.skip_to_last(10_000)
    assert rank == 3
    assert 16_006 - 10_000 + 9 * 6 <= skipped < 16_006 - 10_000 + 9 * 6 + 32


# --- which files have changed: told at once where the kernel tells, found by looking elsewhere, and never missed ---


@pytest.fixture
def watch(tmp_path):
    made = []

    def changes_of(*names):
        made.append(Changes({key: GrowingLog(tmp_path / name) for key, name in enumerate(names)}))
        return made[-1]

    yield changes_of
    for changes in made:
        changes.close()


@pytest.fixture(params=["told", "looked at"])
def watched(request, watch, monkeypatch):
    if request.param == "looked at":
        monkeypatch.setattr(module, "LOCAL", frozenset())
    return watch


def settle(changes):
    wait_until(lambda: not [changes.nothing_new(key) for key in changes.changed()], "that all are quiet")


def wait_due(changes):
    return wait_until(changes.changed, "a change")


def test_every_file_is_due_at_first_and_once_nobody_writes(watched, tmp_path):
    """Each until it was read to its end; those that were quiet before, too. Should somebody write again, it is seen."""
    append(tmp_path / "a")
    changes = watched("a", "missing")
    assert changes.changed() == (0, 1)
    settle(changes)
    assert changes.changed(ended=True) == (0, 1)
    changes.nothing_new(1)
    assert changes.changed(ended=True) == (0,)
    changes.nothing_new(0)
    assert changes.changed(ended=True) == ()
    append(tmp_path / "a")
    assert changes.changed(ended=True) == ()
    assert wait_due(changes) == (0,)


def test_what_is_written_makes_a_file_due(watched, tmp_path):
    for name in "abc":
        append(tmp_path / name)
    changes = watched("a", "b", "c")
    settle(changes)
    for _ in range(3):
        append(tmp_path / "b")
        assert wait_due(changes) == (1,)
        settle(changes)
    assert changes.changed() == ()


def test_a_write_between_reading_and_asking_is_not_missed(watched, tmp_path):
    """A file that was read to its end may have grown before anybody listens."""
    append(tmp_path / "a")
    changes = watched("a")
    for _ in range(20):
        assert wait_due(changes) == (0,)
        append(tmp_path / "a")  # after it was read
        changes.nothing_new(0)
        assert wait_due(changes) == (0,)
        settle(changes)
        append(tmp_path / "a")


@pytest.mark.parametrize("how", ["made late", "removed and made again", "another one renamed to its name", "emptied"])
def test_a_file_that_is_replaced(watched, tmp_path, how):
    file, other = tmp_path / "a", tmp_path / "b"
    if how != "made late":
        append(file, b"long ago")
    changes = watched("a")
    settle(changes)
    if how == "emptied":
        os.truncate(file, 0)
    elif "renamed" in how:
        append(other, b"today")
        other.rename(file)
    else:
        file.unlink(missing_ok=True)
        append(file, b"today")
    assert wait_due(changes) == (0,)
    settle(changes)
    append(file)
    assert wait_due(changes) == (0,)


def test_waiting_ends_with_a_change(watched, tmp_path):
    append(tmp_path / "a")
    changes = watched("a")
    settle(changes)
    writer = threading.Timer(0.05, append, [tmp_path / "a"])
    writer.start()
    before_s = time.monotonic()
    while not changes.changed():
        changes.wait(1000)
    writer.join()
    assert time.monotonic() - before_s < 500


def test_a_writer_wakes_nobody_who_has_much_to_read(watch, tmp_path):
    """A file that is due makes the kernel say nothing more, however often it is written."""
    append(tmp_path / "a")
    changes = watch("a")
    settle(changes)
    for _ in range(100):
        append(tmp_path / "a")
    assert len(changes._inotify.take()) <= 2  # the change, and that nobody listens any more


def test_a_thousand_files(watch, tmp_path):
    for number in range(1024):
        append(tmp_path / str(number))
    changes = watch(*map(str, range(1024)))
    settle(changes)
    assert len(list(Path("/proc/self/fd").iterdir())) < 512
    append(tmp_path / "777")
    assert wait_due(changes) == (777,)


def test_without_inotify_files_are_looked_at(watch, tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    append(tmp_path / "a")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # no descriptor for it
        changes = watch("a")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    settle(changes)
    append(tmp_path / "a")
    assert wait_due(changes) == (0,)


def test_what_the_kernel_does_not_tell_is_found_all_the_same(watch, tmp_path, monkeypatch):
    """A look at every file now and then: nothing rests on inotify alone."""
    monkeypatch.setattr(module, "_MODIFY", 0x10000000)  # asks for nothing that will ever happen
    clock = Clock(monkeypatch)
    append(tmp_path / "a")
    changes = watch("a")
    settle(changes)
    append(tmp_path / "a")
    assert changes.changed() == ()
    clock.now_s += module.MAKE_SURE_EVERY_S
    assert changes.changed() == (0,)


class Clock:
    """The clock of `Changes`. It advances only when a test sets `now_s`."""

    def __init__(self, monkeypatch):
        self.now_s = 1000.0
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now_s))


def test_many_files_are_looked_at_less_often(watch, tmp_path, monkeypatch):
    """So that looking costs little, however many there are: here each look at a file takes a hundred microseconds."""
    monkeypatch.setattr(module, "LOCAL", frozenset())
    clock, signature, looking_s = Clock(monkeypatch), module._signature, 0.0

    def slow_signature(path):
        nonlocal looking_s
        looking_s += 1e-4
        clock.now_s += 1e-4
        return signature(path)

    def looking_share():
        nonlocal looking_s
        changes = watch(*map(str, range(50)))
        settle(changes)
        began_s, looking_s = clock.now_s, 0.0
        while clock.now_s < began_s + 10:
            clock.now_s += module.LOOK_EVERY_S
            changes.changed()
        return looking_s / (clock.now_s - began_s)

    monkeypatch.setattr(module, "_signature", slow_signature)
    for number in range(50):
        append(tmp_path / str(number))
    assert looking_share() < 3 * module.LOOK_SHARE
    monkeypatch.setattr(module, "LOOK_SHARE", 1e9)
    assert looking_share() > 0.05
