"""Read a rank's progress from its heartbeat, or else from its log, reading little of it."""

import time

import pytest

from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import AgentStarted, AttemptStarted, RankStarted
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir, mark_of
from launcher.logs.figures import progress_regex
from launcher.runs import logged_metrics
from launcher.runs.logged_metrics import logged_steps
from launcher.runs.rank_figures import LOOK_BYTES, FiguresReader, RankFigures
from launcher.runs.status import look
from tests.programs import acted_run


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path):
    (tmp_path / "device0").mkdir()
    return RunDir(tmp_path)


def write(run_dir, text, mode="a"):
    with run_dir.train_log(0).open(mode) as log:
        log.write(text)


def test_the_newest_line_with_figures_counts(run_dir):
    reader = FiguresReader(run_dir)
    assert reader.look(0) == RankFigures()
    write(run_dir, "step 1 loss 5\nother\n")
    assert reader.look(0) == RankFigures(from_log=True, step=1, loss=5.0)
    write(run_dir, "more\nstep 2 lo")
    assert reader.look(0).step == 1
    write(run_dir, "ss 4\n")
    assert (reader.look(0).step, reader.look(0).loss) == (2, 4.0)


BAR = " 37%|###7    | {step}/100 [00:03<00:06,  9.98it/s]"


def test_a_bar_without_words_counts_where_no_line_says_more(run_dir):
    """It may be of an epoch or of an evaluation, and comes more often than what tells the loss."""
    reader = FiguresReader(run_dir)
    write(run_dir, f"\r{BAR.format(step=37)}\r{BAR.format(step=38)}\r")
    figures = reader.look(0)
    assert (figures.step, figures.last_step, figures.steps_per_s) == (38, 100, 9.98)
    write(run_dir, f"\n\r{BAR.format(step=5)}\x1b[A\r{BAR.format(step=39)}\r")  # with another one below it
    assert reader.look(0).step == 39
    write(run_dir, f"\n{{'loss': 0.4, 'epoch': 0.3}}\n{BAR.format(step=40)}\r")
    assert (reader.look(0).step, reader.look(0).loss) == (None, 0.4)
    write(run_dir, f"{BAR.format(step=41)}\r")
    assert (reader.look(0).step, reader.look(0).loss) == (None, 0.4)


def test_a_bar_without_words_that_has_come_to_its_end_has_no_speed(run_dir):
    """Its loop is over. Once something else is printed it is not known to have been that of the training."""
    reader = FiguresReader(run_dir)
    write(run_dir, f"\r{BAR.format(step=99)}\r{BAR.format(step=100)}\n")
    figures = reader.look(0)
    assert (figures.step, figures.last_step, figures.steps_per_s) == (100, 100, None)
    write(run_dir, "\n\x1b[A\r \r")  # as tqdm cleans up
    assert reader.look(0).step == 100
    write(run_dir, "evaluat")
    assert reader.look(0).step == 100
    write(run_dir, "ing\n")
    assert not reader.look(0).known
    write(run_dir, f"\r{BAR.format(step=3)}\r")
    assert (reader.look(0).step, reader.look(0).steps_per_s) == (3, 9.98)
    write(run_dir, "between two of its lines\n")
    assert reader.look(0).step == 3
    write(run_dir, f"\r{BAR.format(step=100)}\nsaved\n")  # both since the last look
    assert not reader.look(0).known


def test_a_heartbeat_counts_before_a_log(run_dir):
    reader = FiguresReader(run_dir)
    write(run_dir, "step 1 loss 5\n")
    run_dir.heartbeat(0).touch()
    figures = reader.look(0)
    assert (figures.step, figures.from_log, figures.heartbeat.beat) == (1, True, Beat())
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=7))
    figures = reader.look(0)
    assert (figures.step, figures.loss, figures.from_log) == (7, None, False)


def test_an_attempt_has_its_own_figures(run_dir):
    reader = FiguresReader(run_dir)
    write(run_dir, "step 100 loss 5\n")
    assert reader.look(0).step == 100
    offset = run_dir.train_log(0).stat().st_size
    assert not reader.look(0, offset).known
    write(run_dir, "step 3 loss 5\n")
    assert reader.look(0, offset).step == 3


def test_the_end_of_a_long_log_is_read_alone(run_dir):
    write(run_dir, "step 1 loss 5\n" + "." * (LOOK_BYTES - 1))
    assert not FiguresReader(run_dir).look(0).known
    write(run_dir, "step 10 loss 5\n" + "." * (LOOK_BYTES - 6) + "\n", mode="w")
    assert not FiguresReader(run_dir).look(0).known


def test_a_long_log_that_ends_with_a_carriage_return_has_figures(run_dir):
    lines = "".join(f"step {step} loss 2.5\n" for step in range(3000))
    write(run_dir, f"{lines}saving checkpoint\rdone\n")
    assert FiguresReader(run_dir).look(0).step == 2999


def test_a_log_may_be_truncated_or_replaced(run_dir):
    reader = FiguresReader(run_dir)
    write(run_dir, "step 100 loss 5\nmore\n")
    assert reader.look(0).step == 100
    write(run_dir, "step 101 loss 5\n", mode="w")
    assert reader.look(0).step == 101
    run_dir.train_log(0).rename(run_dir.device(0) / "train.log.1")
    assert reader.look(0).step == 101
    write(run_dir, "step 102 loss 5\n")
    assert reader.look(0).step == 102


def test_an_expression_that_takes_too_long_is_given_up(run_dir):
    write(run_dir, "1" * 60 + "\n")
    reader = FiguresReader(run_dir, progress_regex(r"(?P<step>(\d+)+)x"))
    before_s = time.process_time()
    assert not reader.look(0).known
    assert time.process_time() - before_s < 3
    assert (reader.look(0).refused, reader.look(1).refused) == (reader.refused.message,) * 2
    write(run_dir, "7x\n")
    assert not reader.look(0).known
    beat({TLAUNCH_HEARTBEAT_FILE: str(run_dir.heartbeat(0))}, Beat(step=7))
    assert reader.look(0).step == 7


AGENT = acted_run.someone_gone()


def run_of(directory, text, offset=None, **fields):
    """Make a run of two ranks. Rank 1 printed `text`, in a second attempt from `offset` on."""
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
    run_dir = run_of(tmp_path, text)
    logged = logged_steps(look(run_dir))
    assert (logged.counts_samples, logged.at_least) == (True, at_least)
    assert [step for _, step, _ in steps_of(run_dir)[1]] == samples


def test_samples_in_the_end_of_a_long_log_are_left_out_where_no_epoch_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(logged_metrics, "END_BYTES", 64)
    assert steps_of(run_of(tmp_path, QUICKSTART)) == (1, [])
