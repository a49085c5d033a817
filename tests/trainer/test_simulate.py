"""Steps on devices that do not exist: their memory, FLOPs and collectives are those of the trainer."""

import json

import pytest

from launcher.core.errors import UsageError
from launcher.trainer.simulate import torch_internals
from tests.programs import parity

from .conftest import run_program

# Each axis and most switches; `tests/programs/simulated_collectives.py` compares all rows of parity.py.
COMPARED = (
    "dp2 mp2 pp2, 4 micro batches",
    "dp2, 4 micro batches, parallel.gradient_accumulation_shard=true",
)


@pytest.fixture(scope="module", name="found")
def _found():
    return json.loads(run_program("simulated_steps.py"))


def test_states_take_the_bytes_that_formulas_say(found):
    """Within 2 %, on every distinct rank: what aligns parameters is not counted in the formulas."""
    for rank, (simulated, computed) in found["states"].items():
        assert simulated == pytest.approx(computed, rel=0.02), rank


def test_the_peak_is_that_of_a_step_with_values(found):
    """On a CPU, in one process, to the byte."""
    for switch, (simulated, observed) in found["on_cpu"].items():
        assert simulated == observed, switch


def test_flops_are_those_of_the_model(found):
    """Without padding and recompute, forward and backward take six FLOPs per multiply-add, over all stages."""
    simulated, computed = found["flops"]
    assert simulated == computed


def test_fewer_micro_batches_stand_for_equal_ones(found):
    assert found["repeated"] == [True, True]


def test_ranks_with_the_same_shapes_are_simulated_once(found):
    """6 pairs on 4 data-parallel ranks, and a vocabulary of odd size on 2 model-parallel ranks."""
    assert found["distinct"] == [[0, 2, 4], [1, 3, 5], [6], [7]]


def test_a_step_cannot_mix_devices_or_read_values_on_the_way(found):
    assert found["refusals"] == ["refused"] * 3


@pytest.mark.distributed
def test_collectives_are_those_that_ranks_record():
    assert {*COMPARED} <= {row.name for row in parity.ROWS}
    printed = run_program("simulated_collectives.py", *COMPARED)
    assert printed.count("pass") == 2 * len(COMPARED)  # as "npu" and as "cuda"


def test_a_torch_without_a_name_is_refused(monkeypatch):
    missing = {"fake_store": "torch.testing:_gone.FakeStore", "process_group": "torch._gone:ProcessGroup"}
    monkeypatch.setattr(torch_internals, "_NAMES", {**torch_internals._NAMES, **missing})
    with pytest.raises(UsageError) as raised:
        torch_internals.internals.__wrapped__()
    assert "torch.testing._gone.FakeStore, torch._gone.ProcessGroup" in raised.value.message
    assert torch_internals.TESTED in raised.value.hint
