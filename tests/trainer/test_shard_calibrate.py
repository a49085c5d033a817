"""What ranks measure for the search of auto_parallel."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "calibrated.py"

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.mark.parametrize("ranks", [1, 4])
def test_all_ranks_have_the_same_numbers_and_choose_alike(ranks):
    done = subprocess.run([sys.executable, PROGRAM, str(ranks)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
