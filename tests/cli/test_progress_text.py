"""How far a training is, in one line."""

import os

import pytest

from launcher.cli.text import progress_text
from launcher.cli.text.progress_text import ProgressText
from launcher.core.env import TLAUNCH_HEARTBEAT_FILE
from launcher.core.heartbeat import Beat, beat
from launcher.core.run_dir import RunDir

LINES = b"data: here\nepoch: 1 step: 3, loss is 2.5000, 900 tokens/s\nvalidation loss is 2.1\n"


@pytest.fixture(name="told")
def _told(tmp_path, monkeypatch):
    """Gives a function: what is told after a beat at a second of the clock; every look reads."""
    monkeypatch.setattr(progress_text, "HEARTBEAT_EVERY_S", 0.0)
    (tmp_path / "device0").mkdir()
    path = RunDir(tmp_path).heartbeat(0)

    def tell(text, second, **values):
        beat({TLAUNCH_HEARTBEAT_FILE: str(path)}, Beat(**values))
        os.utime(path, ns=(0, second * 10**9))
        return text.text()

    return tell


def test_the_time_left_follows_from_the_steps_since_the_first_that_was_seen(told, tmp_path):
    """It is unknown at first, and over at the last step; another attempt is another beginning."""
    text = ProgressText(RunDir(tmp_path), on_terminal=True)
    assert told(text, 100, step=10, last_step=400, loss=3.0) == "step 10 of 400, loss 3.0000"
    assert (
        told(text, 120, step=50, last_step=400, tokens_per_s=5e3) == "step 50 of 400, 5,000 tokens/s, 2 min 55 s left"
    )
    assert told(text, 200, step=400, last_step=400) == "step 400 of 400"
    assert told(text, 300, step=1, last_step=400) == "step 1 of 400"
    assert told(text, 310, step=2, last_step=4) == "step 2 of 4, 20 s left"
    assert told(text, 320, step=3) == "step 3"


def test_lines_of_steps_are_left_out_where_the_end_is_known(told, tmp_path):
    """From the first one on, since its heartbeat comes before it; all other lines are kept."""
    text = ProgressText(RunDir(tmp_path), on_terminal=True, needs_end=True)
    assert text.without_steps(LINES) == LINES
    assert told(text, 100, step=3) == ""
    assert text.without_steps(LINES) == LINES
    told(text, 101, step=3, last_step=9)
    assert text.without_steps(LINES) == b"data: here\nvalidation loss is 2.1\n"
