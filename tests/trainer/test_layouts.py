"""Every layout trains the same model: the same losses, gradients and weights as one process."""

import functools
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


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Gives a function: train the layouts of a precision, once; the directory of what they wrote."""

    @functools.cache
    def train_all(precision):
        directory = tmp_path_factory.mktemp(precision)
        train_cases([case(name, precision) for name in TRAINED[precision]], directory)
        return directory

    return train_all


@pytest.fixture
def trained(request, train):
    """Of a precision: the directory of what its layouts wrote, and the tolerance."""
    return train(request.param), TOLERANCE[request.param]


def read(directory, name):
    return json.loads((directory / f"{name}.json").read_text())


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("trained", "layout"), COMPARED, indirect=["trained"])
def test_losses_equal_those_of_one_process(trained, layout):
    """Five steps and a validation give the same losses under every layout."""
    directory, tolerance = trained
    ours, reference = read(directory, layout), read(directory, REFERENCE)

    assert len(ours["losses"]) == 5
    assert ours["losses"] == pytest.approx(reference["losses"], rel=tolerance)
    # The norm's own rounding: it sums squares of what the losses' rounding has touched already.
    assert ours["gradient_norms"] == pytest.approx(reference["gradient_norms"], rel=100 * tolerance)
    assert ours["validation_loss"] == pytest.approx(reference["validation_loss"], rel=tolerance)


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("trained", list(TRAINED), indirect=True)
def test_one_process_learns(trained):
    """The trace that all others are held against is of a model that learns."""
    reference = read(trained[0], REFERENCE)

    assert reference["losses"][-1] < reference["losses"][0] - 0.05
    assert max(reference["gradient_norms"]) > 0.3  # clipping acts


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("trained", "layout"), COMPARED, indirect=["trained"])
def test_gradients_equal_those_of_one_process(trained, layout):
    """The gathered gradients of the first batch are those of one process, element by element."""
    directory, tolerance = trained

    assert_close(directory, f"{layout}.gradients", f"{REFERENCE}.gradients", tolerance)


@pytest.mark.distributed
@pytest.mark.timeout(900)
@pytest.mark.parametrize("trained", ["float64"], indirect=True)
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != REFERENCE])
def test_weights_equal_those_of_one_process(trained, layout):
    """The gathered weights after the last step are those of one process.

    In float64 only: AdamW divides by the gradient's size, so where a gradient is all but zero, rounding decides the
    direction of a whole step.
    """
    directory, tolerance = trained

    assert_close(directory, f"{layout}.weights", f"{REFERENCE}.weights", 100 * tolerance)


@pytest.mark.distributed
def test_replicas_stay_equal_under_dropout(tmp_path):
    """With dropout, ranks that share parameters still hold the same bits: masks agree wherever tensors do.

    The program checks that in every rank; without dropout it does so for all layouts above.
    """
    cases = [
        {**case(name, "float32"), "settings": ["model.dropout=0.3"]}
        for name in ("dp2 mp2", "dp2 mp2 pp2, 4 micro batches")
    ]
    train_cases(cases, tmp_path)


def case(name, precision):
    dp, mp, pp, micro_batches = LAYOUTS[name]
    return {"name": name, "dp": dp, "mp": mp, "pp": pp, "micro_batches": micro_batches, "precision": precision}


def train_cases(cases, directory):
    done = subprocess.run(
        [sys.executable, PROGRAM, directory], input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]


def assert_close(directory, ours_name, reference_name, tolerance):
    """Every tensor within `tolerance` of its own largest element."""
    ours, reference = load_file(directory / ours_name), load_file(directory / reference_name)

    assert ours.keys() == reference.keys()
    for name, expected in reference.items():
        # The bias of a key shifts all scores of a query alike: its gradient is zero but for rounding.
        if not name.endswith("attention.key.bias"):
            scale = max(float(np.abs(expected).max()), 1e-3)
            assert float(np.abs(ours[name] - expected).max()) <= tolerance * scale, name
