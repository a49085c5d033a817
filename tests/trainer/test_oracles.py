"""Each kind of parallelism against torch's own implementation of it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "oracles.py"


@pytest.mark.distributed
def test_torch_gives_the_same_numbers():
    """DTensor, torch's pipeline, and FSDP2 with AdamW agree with the trainer to 1e-9."""
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
