"""Collectives through shared memory, in real ranks. Of ranks that are lost: tests/supervise/diagnosis/test_error_patterns.py."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "shared_memory_checks.py"
CHECKS = (
    "equal 2", "equal 3", "equal 8", "slices 2", "slices 3", "slices 8", "ragged 3", "ragged 8", "refused 3", "none_left 3", "apart 2",
    "falls_back 2", "demanded 2",
)  # fmt: skip

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def held():
    """Each check's last words, "ok" if it held; the program's functions say what they check."""
    done = subprocess.run([sys.executable, PROGRAM, *CHECKS], capture_output=True, text=True, check=True)
    return done.stdout.splitlines(), done.stderr[-4000:]


@pytest.mark.parametrize("check", CHECKS)
def test_what_ranks_that_share_memory_are_promised_holds(held, check):
    lines, errors = held
    if f"not tried {check}" in lines:
        pytest.skip("no right to make a network namespace")
    assert f"ok {check}" in lines, errors
