"""What a run measured in its last minutes."""

import re
import time

import pytest

from launcher.cli.commands.top import MAX_STEPS, RecentMetrics, to_lines
from launcher.core.metrics import StepMetrics, to_line

SECOND_NS = 10**9


def write(path, ages_s, mode="ab"):
    """A step for each age, with its number as its loss."""
    now_ns = time.time_ns()
    with path.open(mode) as file:
        for number, age_s in enumerate(ages_s):
            record = StepMetrics(
                now_ns - round(age_s * SECOND_NS), 0, number, float(number), 1e-4, 5100.5, 0.02, 10**9, 1
            )
            file.write(to_line(record))


@pytest.fixture(name="path")
def _path(tmp_path):
    return tmp_path / "metrics.jsonl"


def test_five_minutes_of_the_fastest_training_are_seen(path):
    write(path, (age / 50 for age in range(16_000, 0, -1)))
    steps = RecentMetrics(path).look()
    assert len(steps) == pytest.approx(15_000, abs=1)
    assert steps[-1].step == 15_999


def test_what_comes_is_added_and_what_is_old_goes(path):
    """Never more than so many steps, however fast they come."""
    write(path, [400.0, 200.0])
    recent = RecentMetrics(path)
    assert [step.step for step in recent.look()] == [0, 1]
    write(path, [100.0, 1.0])
    assert [step.step for step in recent.look()] == [1, 0, 1]
    write(path, [0.5] * (MAX_STEPS + 10))
    assert len(recent.look()) == MAX_STEPS


def test_a_loss_that_is_not_finite_is_shown_as_it_is_now(path):
    with path.open("ab") as file:
        for number in range(60):
            file.write(to_line(StepMetrics(time.time_ns(), 0, number, 5.0 - number / 10 if number < 20 else None)))
    [loss] = to_lines(RecentMetrics(path).look(), 80, plain=False)
    assert loss.split()[1] == "5.0000"
    assert re.search(r"▁ {20,}nan +over", loss)


def test_of_a_file_that_is_gone_nothing_is_left(path):
    recent = RecentMetrics(path)
    assert recent.look() == []
    write(path, [3.0, 2.0, 1.0])
    assert len(recent.look()) == 3
    write(path, [5.0], "wb")
    assert len(recent.look()) == 1
    path.unlink()
    assert recent.look() == []
    write(path, [3.0, 2.0])
    assert len(recent.look()) == 2


def test_times_that_cannot_be_hide_nothing(path):
    """Neither one that is to come, nor a clock that was set back: no course took less than no time."""
    write(path, [3.0, -(10.0**9), 2.0, 1.0])
    assert [step.step for step in RecentMetrics(path).look()] == [0, 2, 3]
    write(path, [-(10.0**9)])
    assert [step.step for step in RecentMetrics(path).look()] == [0, 2, 3]
    write(path, [3.0, 2.0, 63.0, 62.0], "wb")
    steps = RecentMetrics(path).look()
    assert [step.step for step in steps] == [2, 3]
    assert [line.split()[-2:] for line in to_lines(steps[::-1], 80, plain=False)] == [["1.0", "s"]] * 2
