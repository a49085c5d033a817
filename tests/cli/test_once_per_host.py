"""An error that every rank of a host meets; tests/end_to_end/test_exec.py has ranks of a real mpirun."""

import os

import pytest

from launcher.cli.launch import once_per_host
from launcher.core.errors import UsageError
from launcher.core.machine.engine_rank import EngineRank


@pytest.fixture(name="meet")
def _meet(monkeypatch):
    """Gives a function: whether a rank has to report an error, and for how many seconds it stays."""
    stays = []
    monkeypatch.setattr(once_per_host.atexit, "register", lambda _sleep, seconds: stays.append(seconds))

    def meet(global_rank, message, ranks_here):
        rank = EngineRank("Open MPI", global_rank, 2, global_rank, ranks_here, f"job-{os.getpid()}")
        with pytest.raises(UsageError) as met, once_per_host.reported_once(rank):
            raise UsageError(message)
        return not met.value.is_reported, stays[-1]

    yield meet
    while once_per_host._held:
        once_per_host._held.pop().close()


def test_the_first_rank_stays_until_ranks_that_start_later_know_that_it_has_reported(meet):
    """They meet the error seconds after it where Python starts slowly. Nobody is waited for by a rank that is alone."""
    (first_reports, first_stays_s), (second_reports, second_stays_s) = (meet(rank, "a", 2) for rank in range(2))
    assert (first_reports, second_reports) == (True, False)
    assert first_stays_s > second_stays_s
    assert meet(0, "b", 1) == (True, second_stays_s)
