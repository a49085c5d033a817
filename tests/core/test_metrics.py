"""The lines of metrics.jsonl."""

import json
import math
import resource

import pytest

from launcher.core.metrics import Saved, StepMetrics, Validation, append, from_line, to_line

STEP = StepMetrics(10**18, 2, 7, 3.25, 1e-4, 5100.5, 0.04, 1 << 40, 1)


@pytest.mark.parametrize("record", [STEP, Validation(5, 0, 7, 3.0, 20.0), Saved(6, 0, 7, "model")], ids=repr)
def test_a_record_is_the_same_after_it_was_a_line(record):
    """One line of plain JSON."""
    line = to_line(record)
    assert line.count(b"\n") == 1
    assert json.loads(line)["schema"] == 1
    assert from_line(line) == (record,)


def test_what_json_does_not_have_is_null():
    """NaN and infinities are written as null, and read as None, even where another program wrote them."""
    line = to_line(StepMetrics(1, 0, 1, math.nan, math.inf))
    assert json.loads(line)["loss"] is None
    assert from_line(line) == (StepMetrics(1, 0, 1),)
    assert from_line(b'{"schema": 1, "time_ns": 1, "attempt": 0, "step": 1, "loss": NaN}') == (StepMetrics(1, 0, 1),)
    assert from_line(to_line(Validation(1, 0, 1, math.nan, math.nan))) == (Validation(1, 0, 1),)


def test_unknown_keys_are_left_out_and_missing_ones_are_none():
    """A later version may write more, and another program less."""
    common = '{"schema": 1, "time_ns": 1, "attempt": 0, "step": 4, '
    assert from_line(f'{common}"loss": 2, "gradient_norm": 1.5}}'.encode()) == (StepMetrics(1, 0, 4, 2.0),)
    assert from_line(f'{common}"perplexity": "high"}}'.encode()) == (Validation(1, 0, 4),)
    assert from_line(f'{common}"epoch": 1e400, "memory_bytes": true}}'.encode()) == (StepMetrics(1, 0, 4),)
    assert from_line(f'{common}"bleu": 30.1}}'.encode()) == ()


@pytest.mark.parametrize(
    ("told", "records"),
    [
        ('"loss": 2, "validation_loss": 3', (StepMetrics(1, 0, 4, 2.0), Validation(1, 0, 4, 3.0))),
        ('"loss": NaN, "validation_loss": 3', (StepMetrics(1, 0, 4), Validation(1, 0, 4, 3.0))),
        ('"loss": 2, "validation_loss": null, "saved": null', (StepMetrics(1, 0, 4, 2.0),)),
        ('"loss": null, "validation_loss": 3, "perplexity": null', (Validation(1, 0, 4, 3.0),)),
        ('"loss": null, "validation_loss": null', (StepMetrics(1, 0, 4),)),
        ('"epoch": 2, "learning_rate": 0.1, "validation_loss": 3', (Validation(1, 0, 4, 3.0),)),
        (
            '"loss": 2, "perplexity": 3, "saved": "model"',
            (StepMetrics(1, 0, 4, 2.0), Validation(1, 0, 4, None, 3.0), Saved(1, 0, 4, "model")),
        ),
        ('"loss": null, "saved": "model"', (Saved(1, 0, 4, "model"),)),
    ],
)
def test_a_line_may_hold_several_records(told, records):
    """What was measured decides which: nulls do not, nor what may stand beside a validation."""
    assert from_line(f'{{"schema": 1, "time_ns": 1, "attempt": 0, "step": 4, {told}}}'.encode()) == records


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"\xff\xfe",
        b'{"schema": 2, "time_ns": 1, "attempt": 0, "step": 1, "loss": 1}',
        b'{"schema": 1, "time_ns": 1, "step": 1, "loss": 1}',
        b'{"schema": 1, "time_ns": 1, "attempt": 0, "step": 1.5, "loss": 1}',
        b'{"schema": 1, "time_ns": 1' + b"0" * 30 + b', "attempt": 0, "step": 1, "loss": 1}',
    ],
)
def test_what_is_no_record_is_refused(line):
    """Rubbish, another schema, no place in the training."""
    with pytest.raises(ValueError):
        from_line(line)


def test_a_torn_line_is_ended_by_the_next(tmp_path):
    """So that no record is lost by what a crash left of another."""
    file = tmp_path / "metrics.jsonl"
    append(file, STEP)
    file.write_bytes(file.read_bytes() + b'{"schema": 1, "ti')
    append(file, STEP)
    append(file, STEP)
    assert file.read_bytes().splitlines() == [to_line(STEP)[:-1], b'{"schema": 1, "ti', *[to_line(STEP)[:-1]] * 2]


def test_a_line_for_which_there_is_no_room_is_an_error(tmp_path):
    """Also where a part of it could be written, which the next line that finds room ends."""
    file = tmp_path / "metrics.jsonl"
    file.write_bytes(b"\n" * 10_000_000)  # beyond what anything else of this process writes meanwhile
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_020, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            append(file, STEP)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    append(file, STEP)
    assert file.read_bytes()[10_000_000:].splitlines() == [to_line(STEP)[:20], to_line(STEP)[:-1]]


def test_a_directory_is_never_made(tmp_path):
    """A run directory that somebody removed stays away."""
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "run" / "metrics.jsonl", STEP)
    assert list(tmp_path.iterdir()) == []
