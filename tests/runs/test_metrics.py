"""Read metrics.jsonl, once and while it grows."""

import math
import os

import pytest

from launcher.core.metrics import Saved, StageShares, StepMetrics, Validation, append, to_line
from launcher.runs import metrics_reader
from launcher.runs.metrics_reader import MAX_LINE_BYTES, MetricsReader, from_line, read_metrics


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def steps(*numbers):
    return [StepMetrics(number, 0, number, loss=number / 2) for number in numbers]


def write(file, records):
    file.write_bytes(b"".join(map(to_line, records)))


STEP, NO_STEP, NAN_STEP = (StepMetrics(1, 0, 4, loss) for loss in (2.0, None, math.nan))
CHECK = Validation(1, 0, 4, 3.0)
SAVED = Saved(1, 0, 4, "model")


@pytest.mark.parametrize(("told", "records", "wrong"), [
    # What was measured decides which records a line holds: nulls do not, nor what may stand beside a validation.
    ('"loss": 2, "validation_loss": 3', (STEP, CHECK), None),
    ('"loss": 2, "validation_loss": null, "saved": null', (STEP,), None),
    ('"loss": null, "validation_loss": 3, "perplexity": null', (CHECK,), None),
    ('"epoch": 2, "learning_rate": 0.1, "validation_loss": 3', (CHECK,), None),
    ('"loss": 2, "perplexity": 3, "saved": "model"', (STEP, Validation(1, 0, 4, None, 3.0), SAVED), None),
    ('"loss": null, "saved": "model"', (SAVED,), None),
    # A loss that is not finite is told from none, however it is written.
    ('"loss": NaN, "validation_loss": 3', (NAN_STEP, CHECK), None),
    ('"loss": null, "validation_loss": null', (NAN_STEP,), None),
    ('"loss": -Infinity, "epoch": null', (NAN_STEP,), None),
    ('"validation_loss": 1e999', (Validation(1, 0, 4, math.nan),), None),
    ('"epoch": 1', (StepMetrics(1, 0, 4, epoch=1),), None),
    # A later version may write more, and another program less.
    ('"loss": 2, "weight_norm": 1.5', (STEP,), None),
    ('"accuracy": 30.1', (), None),
    ('"validation_loss": 3, "bleu": 30.1', (Validation(1, 0, 4, 3.0, None, 30.1),), None),
    ('"stage_busy": [0.5, 1]', (StageShares(1, 0, 4, (0.5, 1.0)),), None),
    ('"stage_busy": [0.5, null]', (), None),
    # The others of a line count although one value is of a wrong type.
    ('"loss": "5"', (NO_STEP,), 'loss "5", which is not a number'),
    ('"loss": 2, "tokens_per_s": [1]', (STEP,), "tokens_per_s [1], which is not a number"),
    ('"loss": 2, "validation_loss": true', (STEP, Validation(1, 0, 4)), "validation_loss true, which is not a number"),
    ('"perplexity": "high"', (Validation(1, 0, 4),), 'perplexity "high", which is not a number'),
    ('"loss": 2, "memory_bytes": 7e7', (STEP,), "memory_bytes 70000000.0, which is not an integer"),
    ('"loss": 2, "stage_busy": 0.5', (STEP,), "stage_busy 0.5, which is not a list of numbers"),
    ('"epoch": 1e400, "loss": 2', (STEP,), "epoch Infinity, which is not an integer"),
    ('"loss": 2, "saved": 1', (STEP,), "saved 1, which is not a string"),
])  # fmt: skip
def test_the_records_of_a_line(told, records, wrong):
    found = from_line(f'{{"schema": 1, "time_ns": 1, "attempt": 0, "step": 4, {told}}}'.encode())
    assert found == (records, wrong and f"has {wrong}")


def test_a_whole_file_is_sorted_by_kind(file):
    one, two = steps(1, 2)
    validation, saved = Validation(2, 0, 2, 1.0, 2.7), Saved(4, 0, 2, "model")
    assert read_metrics(file).steps == ()
    file.write_bytes(
        to_line(one) + to_line(two)[:-2] + b', "validation_loss": 1, "perplexity": 2.7}\n' + to_line(saved)
    )
    metrics = read_metrics(file)
    assert (metrics.steps, metrics.validations, metrics.saved) == ((one, two), (validation,), (saved,))


def test_every_record_is_given_once(file):
    reader = MetricsReader(file)
    assert reader.read() == []
    write(file, steps(1, 2))
    assert reader.read() == steps(1, 2)
    assert reader.read() == []
    append(file, *steps(3))
    assert reader.read() == steps(3)


def test_a_last_line_that_is_torn_is_read_when_it_is_whole(file):
    write(file, steps(1, 2))
    whole = file.read_bytes()
    reader = MetricsReader(file)
    for length in range(len(to_line(*steps(1))), len(whole)):
        file.write_bytes(whole[:length])
        assert reader.read() in ([], steps(1))
    file.write_bytes(whole)
    assert reader.read() == steps(2)
    assert reader.strange == 0


def test_another_file_of_that_name_is_read_anew(file):
    write(file, steps(1, 2, 3))
    reader = MetricsReader(file)
    reader.read()
    write(file, steps(4))
    assert reader.read() == steps(4)
    write(file, steps(5, 6, 7, 8))
    assert reader.read() == steps(5, 6, 7, 8)
    file.unlink()
    assert reader.read() == []
    write(file, steps(9))
    assert reader.read() == steps(9)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("begun", [b"", b'{"schema": 1, '])
def test_a_file_that_begins_anew_is_read_whatever_was_seen_of_it(file, replaced, begun):
    reader = MetricsReader(file)
    for before in (reader.read, file.touch, reader.read):
        before()
    assert reader.beginnings == 1
    write(file, steps(1, 2, 3, 4, 5))
    assert reader.read() == steps(1, 2, 3, 4, 5)
    if replaced:
        file.unlink()
    file.write_bytes(begun)
    assert [reader.read(), reader.read()] == [[], []]
    assert reader.beginnings == 2
    write(file, steps(6, 7, 8))
    assert reader.read() == steps(6, 7, 8)
    assert (reader.beginnings, reader.strange) == (2, 0)
    append(file, *steps(9))
    assert reader.read() == steps(9)


@pytest.mark.parametrize(("line", "why"), [
    ('{"step": 1, "loss": 5}', "has no schema"),
    ('{"schema": 2, "step": 1}', "has schema 2, not 1"),
    ('{"schema": "1"}', 'has schema "1", not 1'),
    ('{"schema": 1, "time_ns": 1, "attempt": 0, "loss": 5}', "has no step"),
    ('{"schema": 1, "time_ns": 1, "attempt": 0, "step": 1.0}', "has step 1.0, which is not an integer"),
    ('{"schema": 1, "time_ns": 1, "attempt": null, "step": 1}', "has attempt null, which is not an integer"),
    ('{"schema": 1, "time_ns": 1, "attempt": 0, "step": true}', "has step true, which is not an integer"),
    ('{"schema": 1, "time_ns": 1%s, "attempt": 0, "step": 1}' % ("0" * 30), "has a number that is too large"),
    ("[1]", "is not a JSON object"), ("loss=5", "is not JSON"), ("\udcff\udcfe\0", "is not JSON"),
    ("[" * 20_000, "is not JSON"),
    ("7" * MAX_LINE_BYTES, "is longer than 65,536 bytes"),
])  # fmt: skip
def test_a_strange_line_is_passed_over_and_told(file, line, why):
    file.write_bytes(
        to_line(*steps(1)) + b"\n" + line.encode(errors="surrogateescape") + b"\nrubbish\n" + to_line(*steps(2))
    )
    metrics = read_metrics(file)
    assert (metrics.strange, metrics.first_strange) == (2, f"line 3 {why}")
    assert metrics.steps == tuple(steps(1, 2))


def test_a_line_without_end_takes_no_memory(file):
    inside = to_line(*steps(7))
    begin = inside[:-1].ljust(MAX_LINE_BYTES)
    file.write_bytes(begin + b"7" * MAX_LINE_BYTES)
    reader = MetricsReader(file)
    assert reader.read() == []
    with file.open("ab") as more:
        more.write(inside + to_line(*steps(1)))
    assert reader.read() == steps(1)
    assert reader.strange == 1


def test_of_a_long_file_only_the_end_may_be_asked_for(file):
    write(file, steps(*range(10, 100)))
    length = len(to_line(*steps(99)))
    for last_bytes, first in ((length, 99), (length + 1, 99), (2 * length - 1, 99), (2 * length, 98), (10**6, 10)):
        reader = MetricsReader(file, last_bytes=last_bytes)
        assert reader.read() == steps(*range(first, 100))
        assert reader.strange == 0
    append(file, *steps(100))
    assert reader.read() == steps(100)
    file.write_bytes(file.read_bytes() + b"rubbish\n")
    reader = MetricsReader(file, last_bytes=20)
    assert (reader.read(), reader.first_strange) == ([], "a line is not JSON")


def test_why_a_file_cannot_be_read(file):
    """By the last call; there is no reason where there is nothing, or something that can be read. A pipe is not waited for."""
    reader = MetricsReader(file)
    assert (reader.read(), reader.found, reader.unreadable) == ([], False, None)
    file.mkdir()
    assert (reader.read(), reader.found, reader.unreadable) == ([], False, "Is a directory")
    file.rmdir()
    os.mkfifo(file)
    assert (reader.read(), reader.found, reader.unreadable) == ([], False, "not a regular file")
    assert read_metrics(file).unreadable == "not a regular file"
    file.unlink()
    file.symlink_to("/dev/zero")
    assert (reader.read(), reader.found) == ([], False)
    file.unlink()
    file.touch()
    assert read_metrics(file).found
    write(file, steps(1))
    assert (reader.read(), reader.found, reader.unreadable) == (steps(1), True, None)


def test_a_file_of_endless_lines_is_not_read_to_its_end(file, monkeypatch):
    monkeypatch.setattr(metrics_reader, "MAX_SKIPPED_BYTES", 4 * MAX_LINE_BYTES)
    long = b"7" * (2 * MAX_LINE_BYTES) + b"\n"
    file.write_bytes(to_line(*steps(1)) + 3 * long + to_line(*steps(2)))
    assert MetricsReader(file).read() == steps(1)
