"""A user's own network is cut over ranks through one function."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "own_network.py"


@pytest.mark.distributed
def test_own_networks_train_as_one_process_does():
    """In all modes, whatever the weights of other ranks were, and whoever has opened torch.distributed."""
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
