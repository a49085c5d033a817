"""How long the scheduler of MindSpore's ranks is waited for."""

import pytest

from launcher.supervise.scheduler import patience_s


@pytest.mark.parametrize(("lived_s", "waits_s"), [(0.1, 2), (3.5, 3.5), (900, 5)])
def test_ranks_get_as_long_as_the_scheduler_had_to_fail_of_the_same(lived_s, waits_s):
    """Within limits: those that begin slowly fail slowly, and a run that has lasted does not wait for long."""
    assert patience_s(lived_s) == waits_s
