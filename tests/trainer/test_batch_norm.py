"""Batch norm over several ranks, against torch's own in one process."""

from torch import nn

from launcher.trainer.parallel.batch_norm import synchronise_batch_norms
from launcher.trainer.parallel.collectives import ALONE


def test_one_rank_keeps_the_kernels_of_torch():
    model = nn.Sequential(nn.BatchNorm2d(3))
    synchronise_batch_norms(model, ALONE)
    assert type(model[0]) is nn.BatchNorm2d
