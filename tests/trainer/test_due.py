"""When checkpoints are due, and what signals do to a rank between its steps."""

import os
import signal
import subprocess
import sys

import pytest

from launcher.recipes.train import CheckpointConfig
from launcher.trainer.checkpoint.schedule import Due, SaveSchedule

LONG, AT_ONCE = 1e6, 1e-12  # minutes
NONE, SAVE, END, BOTH = (0.0, 0.0), (1.0, 0.0), (0.0, 2.0), (3.0, 1.0)


def steps_due(config, *, last=12, validated=()):
    """The steps after which all ranks save where nobody votes."""
    schedule = SaveSchedule(config, has_clock=False)
    found = {
        step: schedule.after(step, schedule.votes(), is_last=step == last, validates=step in validated)
        for step in range(1, last + 1)
    }
    assert not any(due.ends for due in found.values())
    return [step for step, due in found.items() if due.saves]


@pytest.mark.parametrize(("settings", "due"), [
    ({}, [12]), ({"enabled": False, "every_steps": 5}, []), ({"every_steps": 5}, [5, 10, 12]), ({"every_minutes": LONG}, [12]),
    ({"every_steps": 6, "every_minutes": LONG}, [6, 12]),
    ({"keep_best": True}, [4, 9, 12]),
    ({"every_steps": 5, "keep_best": True}, [4, 5, 9, 10, 12]),
], ids=str)  # fmt: skip
def test_after_which_steps(settings, due):
    assert steps_due(CheckpointConfig(**settings), validated=(4, 9, 12)) == due


@pytest.mark.parametrize(
    ("votes", "due"), [(NONE, Due()), (SAVE, Due(saves=True)), (END, Due(True, True)), (BOTH, Due(True, True))], ids=str
)
def test_one_vote_of_any_rank_decides(votes, due):
    schedule = SaveSchedule(CheckpointConfig(every_steps=100), has_clock=False)
    assert schedule.after(7, votes, is_last=False, validates=False) == due


def test_minutes_are_counted_by_one_rank_alone():
    config = CheckpointConfig(every_minutes=AT_ONCE)
    assert [SaveSchedule(config, has_clock=clock).votes() for clock in (True, False)] == [SAVE, NONE]
    schedule = SaveSchedule(CheckpointConfig(every_minutes=LONG), has_clock=True)
    assert schedule.votes() == NONE


def test_sigusr1_is_a_wish_that_one_checkpoint_fulfils():
    before = signal.getsignal(signal.SIGUSR1)
    schedule = SaveSchedule(CheckpointConfig(every_steps=2), has_clock=False)
    with schedule.on_demand():
        signal.raise_signal(signal.SIGUSR1)
        assert schedule.votes() == SAVE
        assert schedule.after(1, NONE, is_last=False, validates=False) == Due()
        assert schedule.votes() == SAVE
        assert schedule.after(2, NONE, is_last=False, validates=False) == Due(saves=True)
        assert schedule.votes() == NONE
    assert signal.getsignal(signal.SIGUSR1) == before


def test_without_checkpoints_signals_do_what_they_always_do():
    before = signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)
    schedule = SaveSchedule(CheckpointConfig(enabled=False), has_clock=True)
    with schedule.on_demand(), schedule.ends_after_step():
        assert (signal.getsignal(signal.SIGUSR1), signal.getsignal(signal.SIGTERM)) == before
    assert schedule.after(3, schedule.votes(), is_last=True, validates=True) == Due()


ENDS = """
import signal
from launcher.recipes.train import CheckpointConfig
from launcher.trainer.checkpoint.schedule import SaveSchedule, end_by_sigterm

schedule = SaveSchedule(CheckpointConfig(every_steps=1), has_clock=False)
try:
    with schedule.ends_after_step():
        signal.raise_signal(signal.SIGTERM)
        print(schedule.votes(), flush=True)
        {within}
    print("after", flush=True)
except ValueError:
    print("failed", flush=True)
"""


@pytest.mark.parametrize(("within", "code", "told"), [
    ("end_by_sigterm()", -signal.SIGTERM, ""),
    ("pass", -signal.SIGTERM, ""),  # no step has ended since
    ("raise ValueError", 0, "failed\n"),  # a peer was lost, say: that is told, and nothing is saved
    ("signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM}); end_by_sigterm()", 128 + signal.SIGTERM, ""),
])  # fmt: skip
def test_sigterm_waits_for_the_end_of_the_step(within, code, told):
    done = subprocess.run(
        [sys.executable, "-c", ENDS.format(within=within)], capture_output=True, text=True, check=False, env=os.environ
    )
    assert (done.returncode, done.stdout) == (code, f"(0.0, 1.0)\n{told}"), done.stderr
