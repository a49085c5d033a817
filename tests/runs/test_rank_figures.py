"""How far a rank is: by its heartbeat, else by its log, of which little is read."""

import time

import pytest

from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir
from launcher.logs.figures import progress_regex
from launcher.runs.rank_figures import LOOK_BYTES, FiguresReader, RankFigures


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
