"""What programs that fork ranks of the trainer compare with one process, with plain loops or with torch's own parts."""

import pytest

from .conftest import run_program

# Each sentence, the program that checks it, and the words it is given after a directory.
PROGRAMS = {
    "parallel parts give the numbers of DTensor, torch's pipeline, and FSDP2 with AdamW": ("oracles.py",),
    "a batch norm in parts gives values, gradients and statistics of the whole batch": ("batch_norm.py",),
    "a vocabulary in parts gives the loss and gradients of the whole": ("head_loss.py",),
    "parts along two dims are trained, saved and divided anew as one process does": ("boxes_ranks.py",),
    "the optimizer reduces in any way alike, and stops on all ranks together": ("optimizer_ranks.py",),
    "networks around a Transformer train on any dp * mp * pp, and go on on another layout": ("api_ranks.py",),
    "own networks are cut in all modes, whoever has opened torch.distributed": ("own_network.py",),
    "all ranks measure the same costs and choose alike (1 rank)": ("calibrated.py", "1"),
    "all ranks measure the same costs and choose alike (4 ranks)": ("calibrated.py", "4"),
    "networks cut by strategies of each kind communicate what the plan says": ("strategies.py", "share"),
    "the quickstart trains alike in all modes, and all ways of saving are recovered": ("quickstart_ranks.py",),
    "ResNet-50 trains with and without cut operators, and its checkpoint is divided anew": ("resnet_ranks.py", "share"),
}
WITHOUT_DIRECTORY = {"calibrated.py", "strategies.py"}  # which take only their words
SLOW = {"quickstart_ranks.py", "resnet_ranks.py"}


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "words",
    [pytest.param(words, marks=[pytest.mark.slow] * (words[0] in SLOW)) for words in PROGRAMS.values()],
    ids=PROGRAMS,
)
def test_ranks_agree_with_one_process(words, tmp_path):
    program, *more = words
    run_program(program, *([] if program in WITHOUT_DIRECTORY else [tmp_path]), *more)
