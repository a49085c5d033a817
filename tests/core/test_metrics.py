"""The lines of metrics.jsonl."""

import json
import math

import pytest

from launcher.core.metrics import Saved, StageShares, StepMetrics, Validation, append, to_line
from launcher.runs.metrics_reader import from_line
from tests.conftest import file_size_limit

STEP = StepMetrics(
    10**18, 2, 7, 3.25, 1e-4, 5100.5, 0.04, 1 << 40, 1, 1 << 41, 0.25, 0.01, 0.02, 0.005, 0.005, 1e9, 0.5
)
SHARES = StageShares(7, 0, 7, (0.75, 0.5), (0.8, 0.6))


@pytest.mark.parametrize("record", [STEP, SHARES, Validation(5, 0, 7, 3.0, 20.0), Saved(6, 0, 7, "model")], ids=repr)
def test_a_record_is_the_same_after_it_was_a_line(record):
    line = to_line(record)
    assert line.count(b"\n") == 1
    assert json.loads(line)["schema"] == 1
    assert from_line(line) == ((record,), None)


def test_what_json_does_not_have_is_null():
    line = to_line(StepMetrics(1, 0, 1, math.inf, math.inf))
    assert json.loads(line)["loss"] is None
    assert from_line(line) == ((StepMetrics(1, 0, 1, math.nan),), None)
    assert from_line(to_line(Validation(1, 0, 1, math.nan, math.nan))) == ((Validation(1, 0, 1, math.nan),), None)


def test_a_torn_line_is_ended_by_the_next(tmp_path):
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "run" / "metrics.jsonl", STEP)
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "metrics.jsonl"
    append(file, STEP)
    file.write_bytes(file.read_bytes() + b'{"schema": 1, "ti')
    append(file, STEP)
    append(file, STEP)
    assert file.read_bytes().splitlines() == [to_line(STEP)[:-1], b'{"schema": 1, "ti', *[to_line(STEP)[:-1]] * 2]


def test_a_line_for_which_there_is_no_room_is_an_error(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n" * 10_000_000)  # beyond what anything else of this process writes meanwhile
    with file_size_limit(10_000_020), pytest.raises(OSError, match="No space left"):
        append(file, STEP)
    append(file, STEP)
    assert file.read_bytes()[10_000_000:].splitlines() == [to_line(STEP)[:20], to_line(STEP)[:-1]]
