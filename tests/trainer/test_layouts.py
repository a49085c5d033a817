"""Every layout trains the same model: the same losses, gradients and weights as one process."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

PROGRAM = Path(__file__).parents[1] / "programs" / "train_layouts.py"

LAYOUTS = {
    "one process": (1, 1, 1, 1),
    "one process, 4 micro batches": (1, 1, 1, 4),
    "dp2": (2, 1, 1, 1),
    "dp2, 4 micro batches": (2, 1, 1, 4),
    "mp2": (1, 2, 1, 1),
    "mp2, 4 micro batches": (1, 2, 1, 4),
    "pp2": (1, 1, 2, 1),
    "pp2, 4 micro batches": (1, 1, 2, 4),
    "dp4": (4, 1, 1, 1),
    "mp4": (1, 4, 1, 1),
    "pp4, 4 micro batches": (1, 1, 4, 4),
    "dp2 mp2": (2, 2, 1, 1),
    "dp2 pp2, 4 micro batches": (2, 1, 2, 4),
    "mp2 pp2, 4 micro batches": (1, 2, 2, 4),
    "dp2 mp2 pp2": (2, 2, 2, 1),
    "dp2 mp2 pp2, 4 micro batches": (2, 2, 2, 4),
    "mp4 pp2, 4 micro batches": (1, 4, 2, 4),
    "dp4 pp2, 4 micro batches": (4, 1, 2, 4),
    "dp8": (8, 1, 1, 1),
    "mp8": (1, 8, 1, 1),
}
REFERENCE = "one process"
TOLERANCE = {"float64": 1e-9, "float32": 1e-4}  # relative, of losses
# Every layout in float64, where rounding hides least; in float32 each axis, and all of them: more are the same code.
TRAINED = {
    "float64": list(LAYOUTS),
    "float32": [REFERENCE, "dp2", "mp2", "pp2, 4 micro batches", "dp2 mp2 pp2, 4 micro batches"],
}
COMPARED = [(precision, name) for precision, layouts in TRAINED.items() for name in layouts if name != REFERENCE]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", name="trained")
def _trained(tmp_path_factory):
    """The directory of what all cases wrote.

    The one with dropout is there for what the program checks in every rank: those that share parameters hold the same
    bits, as masks agree wherever tensors do.
    """
    directory = tmp_path_factory.mktemp("trained")
    cases = [case(name, precision) for precision, layouts in TRAINED.items() for name in layouts]
    with_dropout = {"name": "with dropout", "settings": ["model.dropout=0.3"]}
    cases.append(case("dp2 mp2 pp2, 4 micro batches", "float32") | with_dropout)
    argv = [sys.executable, PROGRAM, directory]
    done = subprocess.run(argv, input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return directory


def case(name, precision):
    dp, mp, pp, micro_batches = LAYOUTS[name]
    axes = {"dp": dp, "mp": mp, "pp": pp, "micro_batches": micro_batches}
    return {"name": f"{precision} {name}", **axes, "precision": precision, "settings": []}


def read(directory, precision, name):
    return json.loads((directory / f"{precision} {name}.json").read_text())


@pytest.mark.parametrize("precision", TRAINED)
def test_one_process_learns(trained, precision):
    """The trace that all others are held against is of a model that learns."""
    reference = read(trained, precision, REFERENCE)

    assert reference["validation_loss"] < reference["losses"][0] - 0.05  # of what it was trained on
    assert max(reference["gradient_norms"]) > 0.3  # clipping acts


@pytest.mark.parametrize(("precision", "layout"), COMPARED)
def test_a_layout_trains_as_one_process_does(trained, precision, layout):
    """The same losses, gradients of the first batch, validation, and weights after the last step.

    Weights in float64 only: AdamW divides by the gradient's size, so where a gradient is all but zero, rounding decides
    the direction of a whole step.
    """
    tolerance = TOLERANCE[precision]
    ours, reference = (read(trained, precision, name) for name in (layout, REFERENCE))

    assert len(ours["losses"]) == 3
    assert ours["losses"] == pytest.approx(reference["losses"], rel=tolerance)
    # The norm's own rounding: it sums squares of what the losses' rounding has touched already.
    assert ours["gradient_norms"] == pytest.approx(reference["gradient_norms"], rel=100 * tolerance)
    assert ours["validation_loss"] == pytest.approx(reference["validation_loss"], rel=tolerance)
    assert_close(trained, precision, layout, "gradients", tolerance)
    if precision == "float64":
        assert_close(trained, precision, layout, "weights", 100 * tolerance)


def assert_close(directory, precision, layout, what, tolerance):
    """Every tensor within `tolerance` of its own largest element."""
    ours, reference = (load_file(directory / f"{precision} {name}.{what}") for name in (layout, REFERENCE))

    assert ours.keys() == reference.keys()
    for name, expected in reference.items():
        # The bias of a key shifts all scores of a query alike: its gradient is zero but for rounding.
        if not name.endswith("attention.key.bias"):
            scale = max(float(np.abs(expected).max()), 1e-3)
            assert float(np.abs(ours[name] - expected).max()) <= tolerance * scale, name
