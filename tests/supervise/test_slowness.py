"""Which rank is slow."""

import pytest

from launcher.core.events import Slow
from launcher.core.records import Layout
from launcher.supervise.slowness import STEPS, Slowness

ALIKE = Layout(dp=4)


def run(slowness, *rounds, first_step=1):
    """Every round is one look at one step of each rank; what the looks told."""
    told = []
    for step, round_ in enumerate(rounds, start=first_step):
        for global_rank, busy_s in round_.items():
            slowness.note(global_rank, step, busy_s)
        told += slowness.newly_slow()
    return told


def usual(**others):
    """Four ranks, of which some differ."""
    return {0: 0.1, 1: 0.1, 2: 0.1, 3: 0.1} | {int(name[1:]): busy_s for name, busy_s in others.items()}


def test_a_rank_that_is_slow_for_five_steps_is_named():
    """Not before the fifth, and with the medians of these five."""
    slowness = Slowness(ALIKE)

    assert run(slowness, *[usual(r2=0.14)] * (STEPS - 1)) == []
    assert run(slowness, usual(r2=0.15), first_step=STEPS) == [Slow(2, busy_s=0.14, median_s=0.1, steps=STEPS)]


def test_it_is_named_once():
    """Whoever reads the console has seen it."""
    assert len(run(Slowness(ALIKE), *[usual(r2=0.2)] * 50)) == 1


def test_it_is_named_again_after_it_was_well_for_five_steps():
    """One good step is no recovery, five are."""
    slow, well = [usual(r2=0.2)] * STEPS, [usual()]

    assert len(run(Slowness(ALIKE), *slow, *well * (STEPS - 1), *slow)) == 1
    assert len(run(Slowness(ALIKE), *slow, *well * STEPS, *slow)) == 2


def test_slow_steps_must_follow_each_other():
    """A rank that writes a checkpoint now and then is not slow."""
    assert run(Slowness(ALIKE), *[usual(r2=0.5), usual(r2=0.5), usual(r2=0.5), usual(r2=0.5), usual()] * 10) == []


def test_a_step_that_is_told_twice_counts_once():
    """A touched file says the same again."""
    slowness = Slowness(ALIKE)
    told = []
    for _ in range(3 * STEPS):
        told += run(slowness, usual(r2=0.2), first_step=7)

    assert told == []


def test_a_third_more_is_not_slow():
    """The limit itself is not beyond the limit."""
    assert run(Slowness(ALIKE), *[usual(r2=0.13)] * 10) == []


def test_steps_of_a_few_milliseconds_are_not_judged():
    """There, the scheduler of the system decides who is slow."""
    tiny = {rank: busy_s / 40 for rank, busy_s in usual(r2=0.19).items()}

    assert run(Slowness(ALIKE), *[tiny] * 10) == []


def test_two_ranks_are_held_against_each_other():
    """With a wider limit, since nobody knows which of the two is the normal one."""
    layout = Layout(dp=2)

    assert run(Slowness(layout), *[{0: 0.1, 1: 0.14}] * 10) == []
    assert run(Slowness(layout), *[{0: 0.1, 1: 0.16}] * 10) == [Slow(1, busy_s=0.16, median_s=0.1, steps=STEPS)]


def test_one_rank_alone_is_never_slow():
    """There is nothing to hold it against."""
    assert run(Slowness(Layout()), *[{0: 100.0}] * 10) == []


def test_ranks_are_held_against_those_of_their_own_stage():
    """The last stage has more to do; the slow rank of the first one is still faster than it."""
    layout = Layout(dp=3, pp=2)
    round_ = {0: 0.1, 1: 0.2, 2: 0.1, 3: 0.5, 4: 0.5, 5: 0.5}

    assert run(Slowness(layout), *[round_] * 10) == [Slow(1, busy_s=0.2, median_s=0.1, steps=STEPS)]


def test_stages_of_one_rank_each_may_differ_much():
    """Twice the work of another stage is the layout's doing, several times is not."""
    layout = Layout(pp=4)

    assert run(Slowness(layout), *[{0: 0.1, 1: 0.1, 2: 0.1, 3: 0.25}] * 10) == []
    assert [slow.global_rank for slow in run(Slowness(layout), *[{0: 0.1, 1: 0.1, 2: 0.1, 3: 0.4}] * 10)] == [3]


def test_ranks_of_a_program_without_a_layout_are_all_alike():
    """Nothing is known but their times."""
    assert [slow.global_rank for slow in run(Slowness(None), *[usual(r0=0.2)] * 10)] == [0]


def test_a_rank_that_has_ended_is_no_measure():
    """Its last time would stay what it was for ever."""
    slowness = Slowness(ALIKE)
    run(slowness, {0: 0.1, 1: 0.1, 2: 0.3, 3: 0.3})
    slowness.forget(0)
    slowness.forget(1)
    slowness.forget(5)

    assert run(slowness, *[{2: 0.3, 3: 0.3}] * 10, first_step=2) == []


@pytest.mark.parametrize("slow_rank", range(4))
def test_ranks_that_are_looked_at_in_different_steps_are_compared(slow_rank):
    """No rank is observed at every step, and fast ranks are ahead."""
    slowness, told = Slowness(ALIKE), []
    for look in range(10):
        for global_rank in range(4):
            slowness.note(global_rank, 7 * look + global_rank, 0.2 if global_rank == slow_rank else 0.1)
        told += slowness.newly_slow()

    assert [slow.global_rank for slow in told] == [slow_rank]
