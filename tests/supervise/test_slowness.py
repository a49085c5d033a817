"""Which rank is slow."""

import pytest

from launcher.core.events import Slow
from launcher.core.records import Layout
from launcher.supervise.slowness import STEPS, Slowness

ALIKE = Layout(dp=4)


def run(slowness, *rounds, first_step=1):
    """Every round is one look at one step of each rank; return what came of the looks."""
    told = []
    for step, round_ in enumerate(rounds, start=first_step):
        for global_rank, busy_s in round_.items():
            slowness.note(global_rank, step, busy_s)
        told += slowness.newly_slow()
    return told


def usual(**others):
    return {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1} | {int(name[1:]): busy_s for name, busy_s in others.items()}


SLOW, WELL = [usual(r2=0.2)], [usual()]


@pytest.mark.parametrize(("rounds", "count"), [
    (SLOW * (STEPS - 1), 0),
    (SLOW * STEPS, 1),
    (SLOW * 50, 1),
    (SLOW * STEPS + WELL * (STEPS - 1) + SLOW * STEPS, 1),
    (SLOW * STEPS + WELL * STEPS + SLOW * STEPS, 2),
    ((SLOW * (STEPS - 1) + WELL) * 10, 0),  # one that writes a checkpoint now and then
])  # fmt: skip
def test_a_rank_is_named_after_five_slow_steps_in_a_row_and_again_after_five_good_ones(rounds, count):
    assert len(run(Slowness(ALIKE), *rounds)) == count


def test_the_medians_of_five_different_steps_are_given():
    rounds = [usual(r2=0.14)] * (STEPS - 1) + [usual(r2=0.15)]
    assert run(Slowness(ALIKE), *rounds) == [Slow(2, busy_s=0.14, median_s=0.1, steps=STEPS)]
    slowness = Slowness(ALIKE)
    assert not any(run(slowness, usual(r2=0.2), first_step=7) for _ in range(3 * STEPS))


@pytest.mark.parametrize(("layout", "round_", "named"), [
    (ALIKE, usual(r2=0.13), []),  # the limit itself is not beyond the limit
    (ALIKE, {rank: busy_s / 40 for rank, busy_s in usual(r2=0.19).items()}, []),  # the system's scheduler decides
    (Layout(dp=2), {0: 0.1, 1: 0.14}, []),  # of two, either may be the normal one
    (Layout(dp=2), {0: 0.1, 1: 0.16}, [(1, 0.16, 0.1)]),
    (Layout(), {0: 100.0}, []),
    # The last stage has more to do; the slow rank of the first one is still faster than it.
    (Layout(dp=3, pp=2), {0: 0.1, 1: 0.2, 2: 0.1, 3: 0.5, 4: 0.5, 5: 0.5}, [(1, 0.2, 0.1)]),
    (Layout(pp=4), {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.25}, []),  # twice the work of another stage is the layout's doing
    (Layout(pp=4), {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.4}, [(3, 0.4, 0.1)]),
    (None, usual(r0=0.2), [(0, 0.2, 0.1)]),  # nothing is known of ranks but their times
])  # fmt: skip
def test_ranks_are_held_against_those_that_do_the_same_work(layout, round_, named):
    told = run(Slowness(layout), *[round_] * 10)
    assert told == [Slow(rank, busy_s=busy_s, median_s=median_s, steps=STEPS) for rank, busy_s, median_s in named]


@pytest.mark.parametrize(("busy_s", "core_wait_s", "own_s"), [(0.3, 0.2, None), (0.3, 0.0, 0.3), (0.5, 0.25, 0.25)])
def test_what_a_rank_waits_for_a_core_is_not_its_work(busy_s, core_wait_s, own_s):
    """That of others is not taken off: their times are what is usual on this machine now."""
    slowness, told = Slowness(ALIKE), []
    for step in range(1, 10):
        for global_rank in (0, 1, 3):
            slowness.note(global_rank, step, 0.1, 0.08)
        slowness.note(2, step, busy_s, core_wait_s)
        told += slowness.newly_slow()
    assert told == ([] if own_s is None else [Slow(2, busy_s=own_s, median_s=0.1, steps=STEPS)])


def test_a_rank_that_has_ended_is_no_measure():
    slowness = Slowness(ALIKE)
    run(slowness, {0: 0.1, 1: 0.1, 2: 0.3, 3: 0.3})
    for global_rank in (0, 1, 5):
        slowness.forget(global_rank)
    assert run(slowness, *[{2: 0.3, 3: 0.3}] * 10, first_step=2) == []


@pytest.mark.parametrize("slow_rank", [0, 3])
def test_ranks_that_are_looked_at_in_different_steps_are_compared(slow_rank):
    slowness, told = Slowness(ALIKE), []
    for look in range(10):
        for global_rank in range(4):
            slowness.note(global_rank, 7 * look + global_rank, 0.2 if global_rank == slow_rank else 0.1)
        told += slowness.newly_slow()
    assert [slow.global_rank for slow in told] == [slow_rank]
