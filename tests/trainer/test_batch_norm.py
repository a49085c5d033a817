"""Batch norm over several ranks, against torch's own in one process."""

import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from launcher.trainer.parallel.batch_norm import synchronise_batch_norms
from launcher.trainer.parallel.collectives import ALONE

PROGRAM = Path(__file__).parents[1] / "programs" / "batch_norm.py"


@pytest.mark.distributed
def test_a_batch_in_parts_gives_the_same():
    """On two and four ranks values, gradients and running statistics are those of the whole batch, to 1e-12."""
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-4000:]


def test_one_rank_keeps_the_kernels_of_torch():
    model = nn.Sequential(nn.BatchNorm2d(3))
    synchronise_batch_norms(model, ALONE)

    assert type(model[0]) is nn.BatchNorm2d
