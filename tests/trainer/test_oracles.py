"""Each kind of parallelism against torch's own implementation of it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "oracles.py"


@pytest.mark.distributed
@pytest.mark.parametrize("kind", ["tensor", "pipeline", "data"])
def test_torch_gives_the_same_numbers(kind):
    """DTensor, torch's pipeline, and FSDP2 with AdamW agree with the trainer to 1e-9."""
    done = subprocess.run([sys.executable, PROGRAM, kind], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-4000:]
