"""How far a training is, in one line."""

import os

import pytest

from launcher.cli.text import progress_text
from launcher.cli.text.progress_text import ProgressText, fitting
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.events import RankStarted
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir
from launcher.runs.progress import RankStart

LINES = (
    b"data: here\nepoch: 1 step: 3, loss is 2.5000, 900 tokens/s\nstep 3: validation loss is 2.1\n"
    b"epoch: 2 step: 1, total step: 4, loss is 2.5000, 900 tokens/s\n"
)
RANKS = 4
STARTS = {rank: RankStart(RankStarted(rank, 1), 0, 0) for rank in range(RANKS)}


@pytest.fixture(name="run_dir")
def _run_dir(tmp_path, monkeypatch):
    """Every look reads, and every survey."""
    monkeypatch.setattr(progress_text, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(progress_text, "SURVEY_EVERY_S", 0.0)
    monkeypatch.setattr(progress_text, "SURVEY_S_PER_RANK", 0.0)
    for rank in range(RANKS):
        (tmp_path / f"device{rank}").mkdir()
    return RunDir(tmp_path)


@pytest.fixture(name="told")
def _told(run_dir):
    path = run_dir.heartbeat(0)

    def tell(text, second, **values):
        beat({TLAUNCH_HEARTBEAT_FILE: str(path)}, Beat(**values))
        os.utime(path, ns=(0, second * 10**9))
        return text.text(STARTS)

    return tell


def write(run_dir, rank, text):
    with run_dir.train_log(rank).open("a") as log:
        log.write(text)


def test_the_time_left_follows_from_the_steps_since_the_first_that_was_seen(told, run_dir, monkeypatch):
    now_s = progress_text.time.monotonic()
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now_s)
    text = ProgressText(run_dir, on_terminal=True)
    assert told(text, 100, step=10, last_step=400, loss=3.0) == "step 10 of 400, loss 3.0000"
    fast = "step 50 of 400, 5,000 tokens/s, 2 min 55 s left"
    assert told(text, 120, step=50, last_step=400, tokens_per_s=5e3) == fast
    assert told(text, 200, step=400, last_step=400) == "step 400 of 400, 3.9 steps/s"
    assert told(text, 300, step=1, last_step=400) == "step 1 of 400"
    assert told(text, 310, step=2, last_step=4) == "step 2 of 4, 0.1 steps/s, 20 s left"
    now_s += 8
    assert text.text(STARTS) == "step 2 of 4, 0.1 steps/s, 12 s left"
    now_s += 13  # it takes longer than before, and nobody knows how long
    assert text.text(STARTS) == "step 2 of 4, 0.1 steps/s, silent for 21 s"
    assert told(text, 320, step=3) == "step 3, 0.1 steps/s"


def test_lines_of_steps_are_left_out_where_a_heartbeat_tells_the_end(told, run_dir):
    text = ProgressText(run_dir, on_terminal=True)
    assert text.without_steps(LINES, STARTS) == LINES
    told(text, 100, step=3)
    assert text.without_steps(LINES, STARTS) == LINES
    told(text, 101, step=3, last_step=9)
    assert text.without_steps(LINES, STARTS) == b"data: here\nstep 3: validation loss is 2.1\n"


def test_the_first_line_of_a_step_is_left_out_whenever_it_comes(told, run_dir, monkeypatch):
    """Between two looks at the ranks, and before it is known that the rank has started."""
    monkeypatch.setattr(progress_text, "SURVEY_S_PER_RANK", 1000)
    monkeypatch.setattr(progress_text, "LOOK_EVERY_S", 1000)
    for starts in (STARTS, {}):
        run_dir.heartbeat(0).unlink(missing_ok=True)
        text = ProgressText(run_dir, on_terminal=True)
        text.look(STARTS)
        told(text, 100, step=3, last_step=9)
        assert text.without_steps(LINES, starts) == b"data: here\nstep 3: validation loss is 2.1\n"


def test_lines_of_steps_are_kept_where_they_are_all_that_tells_of_them(run_dir):
    text = ProgressText(run_dir, on_terminal=True)
    write(run_dir, 0, "step 3/9 loss 2.5\n")
    assert text.text(STARTS) == "step 3 of 9, loss 2.5000"
    assert text.without_steps(LINES, STARTS) == LINES


def test_the_lowest_rank_with_figures_is_told_of(run_dir):
    """By its log where it has no heartbeat. What another attempt has printed is not read."""
    text = ProgressText(run_dir, on_terminal=True)
    assert text.text(STARTS) == ""
    write(run_dir, 2, "Epoch 3 | Step 12/300 | loss=0.3 | 2.5 it/s\n")
    assert text.text(STARTS) == "epoch 3, step 12 of 300, loss 0.3000, 2.5 steps/s"
    write(run_dir, 0, "step 1 loss 9\n")
    assert text.text(STARTS).startswith("epoch 3, step 12 of 300")
    text.forget()
    assert text.text(STARTS) == "step 1, loss 9.0000"
    text.forget()
    behind = {rank: RankStart(RankStarted(rank, 2, 0, 1000), 0, 0) for rank in range(RANKS)}
    for rank in range(RANKS):
        write(run_dir, rank, "." * 1000 + "\n")
    assert text.text(behind) == ""


def test_a_bar_without_words_tells_its_step_and_speed(run_dir, monkeypatch):
    """And no time left, since it may be of an epoch alone."""
    now_s = [1000.0]
    monkeypatch.setattr(progress_text.time, "time_ns", lambda: int(now_s[0] * 1e9))
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now_s[0])
    text = ProgressText(run_dir, on_terminal=True)
    for step in (7, 37):
        write(run_dir, 0, f"\r  7%|7    | {step}/100 [00:03<00:06,  9.98it/s]\r")
        now_s[0] += 3
        assert text.text(STARTS) == f"step {step} of 100, 9.98 steps/s"


def test_samples_are_called_so(run_dir):
    text = ProgressText(run_dir, on_terminal=True)
    write(run_dir, 0, "Train Epoch: 1 [640/60000 (1%)]\tLoss: 2.25\n")
    assert text.text(STARTS) == "epoch 1, sample 640 of 60000, loss 2.2500"


@pytest.mark.parametrize(
    ("form", "epochs"),
    [("loss: 2.5  [{sample:>5}/60000]\n", False), ("Train Epoch: {epoch} [{sample}/60000 (1%)]\tLoss: 2.5\n", True)],
)
def test_samples_are_counted_anew_in_each_epoch(run_dir, monkeypatch, form, epochs):
    """Their pace is that of the epoch, also where its first line is not seen; how long the training takes, they do not tell."""
    now_s = [1000.0]
    monkeypatch.setattr(progress_text.time, "time_ns", lambda: int(now_s[0] * 1e9))
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now_s[0])
    text = ProgressText(run_dir, on_terminal=True)

    def told(epoch, sample):
        write(run_dir, 0, form.format(epoch=epoch, sample=sample))
        now_s[0] += 3
        return text.text(STARTS).removeprefix(f"epoch {epoch}, ")

    assert told(1, 640) == "sample 640 of 60000, loss 2.5000"
    assert told(1, 30640) == "sample 30640 of 60000, loss 2.5000, 10,000 samples/s"
    assert told(2, 1280) == "sample 1280 of 60000, loss 2.5000"
    assert told(2, 31280) == "sample 31280 of 60000, loss 2.5000, 10,000 samples/s"
    if epochs:
        assert told(3, 32000) == "sample 32000 of 60000, loss 2.5000"


def test_a_rank_that_stays_behind_is_named(run_dir):
    text = ProgressText(run_dir, on_terminal=True)
    for rank in range(RANKS):
        write(run_dir, rank, f"step {10 - (rank == 3)} loss 1\n")
    for _ in range(3):
        assert "slowest" not in text.text(STARTS)
    for rank in range(3):
        write(run_dir, rank, "step 12 loss 1\n")
    assert "slowest" not in text.text(STARTS)
    assert text.text(STARTS) == "step 12, loss 1.0000, slowest rank 3 at step 9"
    write(run_dir, 3, "step 12 loss 1\n")
    assert "slowest" not in text.text(STARTS)


def test_a_rank_that_prints_seldom_does_not_lag(run_dir):
    """Rank 1 prints at the end of an epoch alone, rank 2 as often as rank 0."""
    text = ProgressText(run_dir, on_terminal=True)
    for step in range(1, 40):
        write(run_dir, 0, f"step {step} loss 1\n")
        write(run_dir, 2, f"step {max(1, step - 4)} loss 1\n")
        if step == 3:
            write(run_dir, 1, "step 3 loss 1\n")
        told = text.text(STARTS)
    assert told.endswith("slowest rank 2 at step 35")


def test_where_there_is_no_terminal_nothing_counts_up(run_dir, monkeypatch):
    """Every change is a line there."""
    monkeypatch.setattr(progress_text, "ALL_SILENT_FROM_S", 0.0)
    monkeypatch.setattr(progress_text, "TOLD_EVERY_PLAIN_S", 0.0)
    text = ProgressText(run_dir, on_terminal=False)
    write(run_dir, 0, "step 9 loss 1\n")
    write(run_dir, 1, "step 1 loss 1\n")
    assert [text.text(STARTS) for _ in range(4)] == ["step 9, loss 1.0000"] * 4


def test_silence_is_told_when_it_lasts(run_dir, monkeypatch):
    now_s = progress_text.time.monotonic()
    monkeypatch.setattr(progress_text.time, "monotonic", lambda: now_s)
    text = ProgressText(run_dir, on_terminal=True)
    write(run_dir, 1, "step 1 loss 1\n")
    assert text.text(STARTS) == "step 1, loss 1.0000"
    monkeypatch.setattr(progress_text, "ALL_SILENT_FROM_S", 0.0)
    assert text.text(STARTS) == "step 1, loss 1.0000, silent for 0.0 s"
    text.forget()
    monkeypatch.setattr(progress_text, "ALL_SILENT_FROM_S", 10.0)
    text.look(STARTS)
    now_s += 12
    assert text.text(STARTS).endswith("silent for 12 s")
    run_dir.heartbeat(3).touch()
    assert "silent" not in text.text(STARTS)
    now_s += 75
    assert text.text(STARTS).endswith("silent for 1 min 15 s")
    write(run_dir, 2, "still here\n")
    assert "silent" not in text.text(STARTS)


@pytest.mark.parametrize(("width", "row"), [
    (200, "4 ranks for 12 s: step 3 of 9, loss 2.5000, 2 steps/s, 3.0 s left, slowest rank 1 at step 1"),
    (78, "12 s: step 3 of 9, loss 2.5000, 3.0 s left, slowest rank 1 at step 1"),
    (41, "step 3 of 9, slowest rank 1 at step 1"),
    (38, "step 3 of 9, slowest rank 1 at step 1"),
    (36, "12 s: step 3 of 9, loss 2.5000"), (11, "step 3 of 9"), (5, "12 s"), (2, ""),
])  # fmt: skip
def test_what_matters_most_stays_on_a_narrow_terminal(width, row):
    parts = {
        "step": "step 3 of 9", "loss": "loss 2.5000", "speed": "2 steps/s", "left": "3.0 s left",
        "lag": "slowest rank 1 at step 1",
    }  # fmt: skip
    assert fitting("4 ranks", "12 s", parts, width) == row


def test_of_a_program_that_says_nothing_the_time_is_told():
    assert fitting("4 ranks", "12 s", {}, 80) == "4 ranks for 12 s"
    assert fitting("4 ranks", "12 s", {"silence": "silent for 10 s"}, 22) == "12 s: silent for 10 s"


def test_a_rank_that_is_silent_alone_is_named(run_dir):
    text = ProgressText(run_dir, on_terminal=True)
    for rank in range(RANKS):
        write(run_dir, rank, "here\n")
    os.utime(run_dir.train_log(2), ns=(0, progress_text.time.time_ns() - 60 * 10**9))
    text.look(STARTS)
    assert text.parts()["silent"].startswith("rank 2 silent for 1 min")
    text.look(STARTS, {2})
    assert "silent" not in text.parts()


@pytest.mark.parametrize(("silent_s", "running", "expected"), [
    ({2: 40.0}, 4, ("rank 2 has been silent for 40 s; to show its stack:", "  tlaunch stacks a --rank 2")),
    ({2: 40.0, 3: 200}, 4,
        ("ranks 2-3 have been silent for 3 min 20 s; to show their stacks:", "  tlaunch stacks a --rank 2-3")),
    ({0: 40.0, 1: 41.0}, 2, ("all ranks have been silent for 41 s; to show their stacks:", "  tlaunch stacks a")),
    ({0: 40.0}, 1, ("rank 0 has been silent for 40 s; to show its stack:", "  tlaunch stacks a --rank 0")),
])  # fmt: skip
def test_what_to_type_is_said(silent_s, running, expected):
    assert progress_text.about_silence(silent_s, running, "a") == expected
