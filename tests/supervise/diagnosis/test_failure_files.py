"""What a rank left behind about its failure."""

import json
import os
from dataclasses import asdict, replace

import pytest

from launcher.supervise.diagnosis.failure_files import TAIL_BYTES, FailureRecord, last_traceback, log_tail, read_failure

RECORD = FailureRecord(
    1_700_000_000_123_456_789, 77, "exception", "ValueError", "no such word", "train.py:88 in step", "Traceback ..."
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "failure.json"


def test_a_record_is_read_as_it_was_written(path):
    path.write_text(json.dumps({"schema": 1, "later": [], **asdict(RECORD)}))
    assert [read_failure(path, pid) for pid in (None, 77, 78)] == [RECORD, RECORD, None]


@pytest.mark.parametrize("content", [
    b"", b"\xff\xfe\x00", b"{", b"[]", b"null", b'"text"', b"{}", b'{"time_ns": 1}', b'{"time_ns": "1", "pid": 2}',
    b'{"time_ns": true, "pid": 2}', b"[" * 100_000, b'{"time_ns": 1, "pid": 2, "message": "\xff"}',
])  # fmt: skip
def test_rubbish_is_no_record(path, content):
    path.write_bytes(content)
    assert read_failure(path) is None


def test_fields_of_a_wrong_type_are_left_out(path):
    path.write_text('{"time_ns": 1, "pid": 2, "type": 3, "message": null, "status": "x", "traceback": {}}')
    assert read_failure(path) == FailureRecord(1, 2, "exception")
    for time_ns in ("1e400", "-1e400", "NaN", "1" + "0" * 400, "-1", "1e19", "9223372036854775808"):
        path.write_text(json.dumps(asdict(RECORD)).replace(str(RECORD.time_ns), time_ns))
        assert read_failure(path, pid=77) == replace(RECORD, time_ns=None)


def test_nothing_but_a_file_is_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert [read_failure(tmp_path / name) for name in ("missing", "", "pipe")] == [None, None, None]
    assert last_traceback(tmp_path / "pipe", 0) is None


SIMPLE = 'Traceback (most recent call last):\n  File "/a/train.py", line 88, in step\n    load()\nValueError: no\n'


def test_only_what_was_written_after_the_offset_counts(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(f"{SIMPLE}--- attempt 1 ---\n")
    assert last_traceback(log, log.stat().st_size) is None
    assert last_traceback(log, 0).where == "train.py:88 in step"
    assert last_traceback(log, 1 << 40).where == "train.py:88 in step"


def test_only_the_end_of_a_long_log_is_read(tmp_path):
    log = tmp_path / "train.log"
    noise = b"\xff\x00 step 1 loss 2.3\n" * (TAIL_BYTES // 16)
    log.write_bytes(SIMPLE.encode() + noise)
    assert last_traceback(log, 0) is None
    log.write_bytes(noise + SIMPLE.encode())
    assert last_traceback(log, 0).message == "no"
    assert len(log_tail(log, 0, 100).encode()) == 100
