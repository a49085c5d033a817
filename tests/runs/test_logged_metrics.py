"""The course of a training by what one of its ranks has printed."""

import pytest

from launcher.core.events import AgentStarted, AttemptStarted, RankStarted
from launcher.core.run_dir import mark_of
from launcher.logs.figures import progress_regex
from launcher.runs import logged_metrics
from launcher.runs.logged_metrics import logged_steps
from launcher.runs.status import look
from tests.programs import acted_run

AGENT = acted_run.someone_gone()


def run_of(directory, text, offset=None, **fields):
    """Of two ranks, of which rank 1 has printed `text`, from `offset` on in a second attempt."""
    events = [AgentStarted(AGENT, None, 2), RankStarted(0, 8), RankStarted(1, 9)]
    if offset is not None:
        events += [AttemptStarted(1, 1), RankStarted(1, 10, 0, offset)]
    run_dir = acted_run.make(directory / "a", events, **fields)
    run_dir.train_log(1).write_bytes(text)
    return run_dir


def steps_of(run_dir, pattern=None):
    logged = logged_steps(look(run_dir), pattern)
    return logged.global_rank, [(each.attempt, each.step, each.loss) for each in logged.steps]


def test_steps_are_those_of_the_lines_of_each_attempt(tmp_path):
    """Of the lowest rank that tells any; lines that say nothing of the training are passed over."""
    first = b"hello\nstep 1 loss 3\nstep 2 loss 2\nstep 3 lo"
    mark = b"\n" + mark_of(1)
    run_dir = run_of(tmp_path, first + mark + b"step 2 loss 2.5\n\rtrain: 3%|x| 3/9 [0, loss=1]\r", len(first + mark))
    assert steps_of(run_dir) == (1, [(0, 1, 3.0), (0, 2, 2.0), (1, 2, 2.5), (1, 3, 1.0)])


def test_steps_of_epochs_go_on(tmp_path):
    text = b"".join(b"Epoch %d | Step %d/2 | loss=%d\n" % (epoch, step, step) for epoch in (1, 2) for step in (1, 2))
    assert steps_of(run_of(tmp_path, text))[1] == [(0, 1, 1.0), (0, 2, 2.0), (0, 3, 1.0), (0, 4, 2.0)]


def test_bars_without_words_are_no_course(tmp_path):
    """They may be of epochs and evaluations in turn."""
    bar = b" 37%%|###7  | %d/9 [00:03<00:06,  9.98it/s]\r"
    assert steps_of(run_of(tmp_path / "alone", bar % 3)) == (None, [])
    assert steps_of(run_of(tmp_path / "beside", b"step 1 loss 3\n" + bar % 3)) == (1, [(0, 1, 3.0)])


def test_the_end_of_a_long_log_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(logged_metrics, "END_BYTES", 4096)
    text = b"".join(b"step %d loss 1\n" % step for step in range(1000))
    steps = steps_of(run_of(tmp_path, text))[1]
    assert (100 < len(steps) < 300, steps[-1]) == (True, (0, 999, 1.0))


def test_the_expression_that_was_given_finds_them(tmp_path):
    run_dir = run_of(tmp_path, b"step 1 loss 3\nat=7 cost=2\n")
    assert steps_of(run_dir, progress_regex(r"at=(?P<step>\d+) cost=(?P<loss>\S+)")) == (1, [(0, 7, 2.0)])


def epochs(first, last, form=b"Epoch %d | Step %d/50 | loss=1\n"):
    """Lines of 50 steps in each of these epochs."""
    return b"".join(form % (epoch, step) for epoch in range(first, last + 1) for step in range(1, 51))


@pytest.mark.parametrize("first", [0, 1, 7])
def test_steps_of_epochs_in_the_end_of_a_long_log_are_counted_from_its_beginning(tmp_path, monkeypatch, first):
    monkeypatch.setattr(logged_metrics, "END_BYTES", 4096)
    before = epochs(1, 9)
    text = before + b"\n" + mark_of(1)
    for whole, offset, attempt in (
        (epochs(first, first + 39), None, 0),
        (text + epochs(first, first + 39), len(text), 1),
    ):
        run_dir = run_of(tmp_path / str(attempt), whole, offset)
        steps = steps_of(run_dir)[1]
        assert (len(steps) < 300, steps[-1]) == (True, (attempt, 2000, 1.0))
        assert logged_steps(look(run_dir)).at_least  # the epochs before may not have been printed to their ends
        assert [step for _, step, _ in steps] == list(range(2001 - len(steps), 2001))


def test_steps_of_epochs_whose_number_is_not_certain_are_left_out(tmp_path, monkeypatch):
    """Where an epoch is longer than what is read, and where the beginning tells no epoch."""
    monkeypatch.setattr(logged_metrics, "END_BYTES", 1024)
    assert steps_of(run_of(tmp_path / "long", epochs(1, 4))) == (1, [])
    monkeypatch.setattr(logged_metrics, "HEAD_BYTES", 100)
    monkeypatch.setattr(logged_metrics, "END_BYTES", 4096)
    assert steps_of(run_of(tmp_path / "late", b"." * 100 + b"\n" + epochs(1, 9))) == (1, [])


def test_steps_that_go_on_over_epochs_are_those_of_a_long_log(tmp_path, monkeypatch):
    monkeypatch.setattr(logged_metrics, "END_BYTES", 1024)
    text = b"".join(b"Epoch %d | Step %d/999 | loss=1\n" % (step // 10, step) for step in range(900))
    assert steps_of(run_of(tmp_path, text))[1][-1] == (0, 899, 1.0)


QUICKSTART = b"".join(b"loss: %d.5  [%d/192]\n" % (epoch, sample) for epoch in (2, 1) for sample in (64, 128, 192))
MNIST = b"".join(b"Train Epoch: %d [%d/128 (50%%)]\tLoss: 2.5\n" % (epoch, n) for epoch in (1, 2) for n in (0, 64))


@pytest.mark.parametrize(("text", "samples", "at_least"), [
    (QUICKSTART, [64, 128, 192, 256, 320, 384], False),
    (MNIST, [0, 64, 64, 128], True), (MNIST[: len(MNIST) // 2], [0, 64], False),
])  # fmt: skip
def test_samples_of_epochs_go_on_and_are_called_so(tmp_path, text, samples, at_least):
    """Whether lines tell the epoch or not. They are more where an epoch was not printed to its end."""
    run_dir = run_of(tmp_path, text)
    logged = logged_steps(look(run_dir))
    assert (logged.counts_samples, logged.at_least) == (True, at_least)
    assert [step for _, step, _ in steps_of(run_dir)[1]] == samples


def test_samples_in_the_end_of_a_long_log_are_left_out_where_no_epoch_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(logged_metrics, "END_BYTES", 64)
    assert steps_of(run_of(tmp_path, QUICKSTART)) == (1, [])
