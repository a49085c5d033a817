"""ResNet-50 on several ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "resnet_ranks.py"


@pytest.mark.distributed
@pytest.mark.slow
def test_ranks_train_as_a_plain_loop_does_and_checkpoints_are_recovered(tmp_path):
    """One step of a mode with and without cut operators; a checkpoint of two ranks goes on with operators cut over four."""
    done = subprocess.run([sys.executable, PROGRAM, tmp_path, "share"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
