"""Every layout trains the same model: the same losses, gradients and weights as one process."""

import json
import subprocess
import sys

import pytest

from tests.programs import parity

# Each axis, all of them, and each switch; `tests/programs/parity.py` compares all rows.
TESTED = (
    "one process, 4 micro batches",
    "dp2",
    "mp2",
    "pp2, 4 micro batches, parallel.stages=[1, 3]",
    "dp2, 4 micro batches, parallel.gradient_groups=4, parallel.transport=backend",
    "dp2 mp2, 4 micro batches, parallel.recompute=true",
    (
        "dp2 mp2 pp2, 4 micro batches, parallel.schedule=interleaved, parallel.interleave=2, parallel.vocab_emb_dp=true, "
        "parallel.gradient_groups=4"
    ),
    "dp2, 4 micro batches, parallel.gradient_accumulation_shard=true",
    "dp2 pp4, 4 micro batches, parallel.stages=[1, 0, 2, 1], parallel.optimizer_shard=false",
    "dp2 mp2 pp2, 4 micro batches, float32",
    *(
        row.name
        for row in parity.ROWS
        if row.numbers == parity.ORIGINAL
        and ((row.dp, row.mp, row.pp) == (2, 2, 2) or "parallel.stages=[4, 0]" in row.settings)
    ),
)

STEPS = 5  # one of each size of batch, and another; parity.py alone takes more

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory):
    """The directory of what all rows have written. The ranks themselves check that those that share tensors hold the same bits."""
    directory = tmp_path_factory.mktemp("trained")
    argv = [sys.executable, parity.__file__, "--directory", directory, "--steps", str(STEPS), *TESTED]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (directory / f"{TESTED[-1]}.weights").exists(), done.stderr[-4000:]
    return directory


def test_one_process_learns(trained):
    reference = json.loads((trained / "one process.json").read_text())
    assert len(reference["losses"]) == STEPS
    assert reference["validation_loss"] < reference["losses"][0] - 0.05  # of what it was trained on
    assert max(reference["gradient_norms"]) > 0.3  # clipping acts


@pytest.mark.parametrize("name", TESTED)
def test_a_layout_trains_as_one_process_does(trained, name):
    [row] = [row for row in parity.ROWS if row.name == name]
    found = parity.differences(trained, row)
    assert parity.holds(row, found), found
