"""Networks whose operators are cut over ranks train as one process does."""

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "strategies.py"


def test_ranks_train_as_one_process_does():
    """Losses, gradients and weights of a few strategies of each kind; what is communicated is what the plan says."""
    done = subprocess.run([sys.executable, PROGRAM, "share"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
