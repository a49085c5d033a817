"""What an agent notes of the growth of logs, and of logs that end with a traceback although the rank exited with 0."""

import os
from pathlib import Path

import pytest

from launcher.core.line_times import RECORD
from launcher.core.run_dir import RunDir
from launcher.supervise import attempts
from launcher.supervise.attempts import LAST_BYTES, ArrivalNotes, doubtful_ends

S = 1_000_000_000


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path):
    for rank in range(2):
        (tmp_path / f"device{rank}").mkdir()
    return RunDir(tmp_path)


def write(run_dir, text, second, rank=0, mode="a"):
    with run_dir.train_log(rank).open(mode) as file:
        file.write(text)
    os.utime(run_dir.train_log(rank), ns=(second * S, second * S))


def noted(run_dir, rank=0):
    path = run_dir.arrivals(rank)
    return [(time_ns // S, end) for time_ns, end in RECORD.iter_unpack(path.read_bytes())] if path.exists() else []


def test_growth_is_noted_with_the_time_of_the_last_write(run_dir):
    notes = ArrivalNotes(run_dir, [0, 1])
    write(run_dir, "ab", 10)
    notes.look(at_last=True)
    notes.look(at_last=True)
    write(run_dir, "cd", 20)
    notes.look(at_last=True)
    assert (noted(run_dir), noted(run_dir, 1)) == ([(10, 2), (20, 4)], [])


def test_looks_are_a_second_apart(run_dir, monkeypatch):
    monkeypatch.setattr(attempts, "NOTE_EVERY_S", 1000)
    notes = ArrivalNotes(run_dir, [0])
    for second in (10, 20):
        write(run_dir, "ab", second)
        notes.look()
    assert noted(run_dir) == [(10, 2)]
    notes.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4)]


def test_the_next_attempt_goes_on(run_dir):
    write(run_dir, "ab", 10)
    ArrivalNotes(run_dir, [0]).look()
    with run_dir.arrivals(0).open("ab") as file:
        file.write(b"part")
    after = ArrivalNotes(run_dir, [0])
    after.look()
    write(run_dir, "cd", 20)
    after.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4)]


def test_a_log_that_was_truncated_is_noted(run_dir, monkeypatch):
    notes = ArrivalNotes(run_dir, [0])
    for second, mode in ((10, "a"), (20, "a"), (30, "w"), (40, "a")):
        write(run_dir, "ab", second, mode=mode)
        notes.look(at_last=True)
    assert noted(run_dir) == [(10, 2), (20, 4), (30, 2), (40, 4)]
    monkeypatch.setattr(attempts, "KEPT_BYTES", 2 * RECORD.size)
    write(run_dir, "a", 50, mode="w")
    notes.look(at_last=True)
    assert noted(run_dir) == [(50, 1)]


def test_what_cannot_be_noted_is_left_out(run_dir):
    run_dir.arrivals(0).mkdir()
    notes = ArrivalNotes(run_dir, [0, 1, 2])
    write(run_dir, "ab", 10)
    write(run_dir, "ab", 10, rank=1)
    notes.look()
    assert noted(run_dir, 1) == [(10, 2)]


# --- the last words of a log ---

HEADER = "Traceback (most recent call last):\n"
HANDLED = f'{HEADER}  File "/a/train.py", line 4, in step\n    x()\nRuntimeError: no\n'
ERROR = HANDLED.replace(HEADER, f'{HEADER}  File "/a/train.py", line 9, in <module>\n    step()\n')
MODULE = ERROR.replace("/a/train.py", "<frozen runpy>", 1).replace("<module>", "_run_module_as_main")
THREAD = f"Exception in thread Thread-1 (load):\n{HANDLED}"
HARMLESS = f"Exception ignored in: <function f at 0x7f>\n{ERROR}"


@pytest.mark.parametrize(("text", "doubtful"), [
    (ERROR, True), (f"step 1\n{ERROR}\n\n", True), (THREAD, True), ("x" * 2 * LAST_BYTES + f"\n{ERROR}", True),
    (f"[rank0]: {ERROR}".replace("\n", "\n[rank0]: ").removesuffix("[rank0]: "), True),
    (MODULE, True), (HANDLED, False), (f"WARNING retrying\n{HANDLED}", False),
    (f"{ERROR}step 2\n", False), (HARMLESS, False), ("step 1\n", False), ("", False), (ERROR.partition("Runtime")[0], False),
])  # fmt: skip
def test_only_a_traceback_at_the_very_end_is_doubtful(tmp_path, text, doubtful):
    log = tmp_path / "train.log"
    log.write_text(text)
    warnings = list(doubtful_ends({1: (log, 0)}, {}))
    assert len(warnings) == doubtful
    assert all("rank 1 " in warning and "RuntimeError: no, at train.py:4 in step" in warning for warning in warnings)


def test_ranks_that_end_alike_share_a_warning(tmp_path):
    logs = {}
    for rank, text in enumerate([ERROR, ERROR, ERROR.replace("no", "yes")]):
        logs[rank] = (tmp_path / f"{rank}.log", 0)
        logs[rank][0].write_text(text)
    logs[3] = (logs[0][0], len(ERROR))
    os.mkfifo(tmp_path / "pipe")
    logs[4], logs[5] = (tmp_path / "pipe", 0), (tmp_path / "none", 0)
    assert [warning.split(" exited")[0] for warning in doubtful_ends(logs, {})] == ["ranks 0-1", "rank 2"]


def test_a_program_that_exits_with_0_has_handled_its_own_exception(tmp_path):
    log, program = tmp_path / "train.log", Path("/a/train.py")
    log.write_text(ERROR)
    assert not list(doubtful_ends({1: (log, 0)}, {1: program}))
    assert list(doubtful_ends({1: (log, 0)}, {1: Path("/a/wrapper.py")}))
