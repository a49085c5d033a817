"""How much grace an end gets where a batch system has the last word."""

import pytest

from launcher.core.records import Supervision


@pytest.mark.parametrize(
    ("killed_at_s", "grace_s"),
    [(None, 15.0), (1100.0, 15.0), (1016.0, 15.0), (1006.0, 5.0), (1000.5, 0.0), (1000.0, 15.0), (900.0, 15.0)],
)
def test_no_more_grace_than_is_left(killed_at_s, grace_s):
    """One second is kept for the report; a moment that has passed was put off."""
    assert Supervision(grace_s=15.0, killed_at_s=killed_at_s).grace_from(1000.0) == grace_s


@pytest.mark.parametrize(("kill_wait_s", "grace_s"), [(None, 15.0), (30.0, 15.0), (3.0, 2.0), (0.0, 0.0)])
def test_a_batch_system_s_own_end(kill_wait_s, grace_s):
    assert Supervision(grace_s=15.0, kill_wait_s=kill_wait_s).grace_on_request_s == grace_s
