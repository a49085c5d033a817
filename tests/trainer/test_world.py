"""A rank's place, as its environment says."""

from types import SimpleNamespace

import pytest
import torch

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.mesh.coordinates import Coordinate
from launcher.trainer.parallel.place import Place, choose_device, place_from_environment

from .conftest import run_program

TORCHRUN = {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_one_process_alone_needs_no_environment():
    place = place_from_environment({}, micro_batches=4)
    assert (place.global_rank, place.world_size, place.layout) == (0, 1, Layout(micro_batches=4))


def test_under_torchrun_every_rank_is_a_copy():
    place = place_from_environment({**TORCHRUN, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, micro_batches=1)
    assert place.layout == Layout(dp=4)
    assert place.coordinate == Coordinate(pp=0, dp=3, mp=0)


def test_a_layout_that_is_not_the_world_is_refused():
    with pytest.raises(RefusedLayoutError, match="needs 4 ranks, but WORLD_SIZE is 8"):
        place_from_environment({**TORCHRUN, "WORLD_SIZE": "8", "TLAUNCH_DP": "2", "TLAUNCH_MP": "2"}, micro_batches=1)


@pytest.mark.parametrize(("environment", "message"), [
    ({"RANK": "first"}, "RANK is 'first'; expected an integer of at least 0"),
    ({"TLAUNCH_MP": "0"}, "TLAUNCH_MP is '0'; expected an integer of at least 1"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE is '-2'; expected an integer of at least 1"),
    ({"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "WORLD_SIZE is 2, but RANK, MASTER_PORT is not set"),
    ({**TORCHRUN, "WORLD_SIZE": "2", "RANK": "5"}, "RANK is 5, but WORLD_SIZE is 2"),
])  # fmt: skip
def test_an_environment_that_makes_no_sense_is_refused(environment, message):
    with pytest.raises(UsageError) as error:
        place_from_environment(environment, micro_batches=1)
    assert message in error.value.message


def device_of(local_rank, device_id, visible, monkeypatch, environment=None):
    accelerator = SimpleNamespace(
        is_available=lambda: visible > 0, device_count=lambda: visible, set_device_index=lambda index: None,
        current_accelerator=lambda: torch.device("cuda"),
    )  # fmt: skip
    monkeypatch.setattr(torch, "accelerator", accelerator)
    place = Place(local_rank, 4, local_rank, 4, device_id, Layout(dp=4))
    return str(choose_device(place, "auto", environment or {}))


@pytest.mark.parametrize(
    ("ids", "visible", "environment", "indices"),
    [([5, 1, 7, 2], 8, {}, [5, 1, 7, 2]), ([1, 4, 5, 6], 4, {"CUDA_VISIBLE_DEVICES": "1,4,5,6"}, [0, 1, 2, 3])],
    ids=["all are seen", "a narrowed view"],
)
def test_a_rank_takes_the_device_of_its_table(monkeypatch, ids, visible, environment, indices):
    """Where all devices are seen, DEVICE_ID is the index; else ranks take what they see, in order, and never two the same."""
    chosen = [device_of(rank, ids[rank], visible, monkeypatch, environment) for rank in range(4)]
    assert chosen == [f"cuda:{index}" for index in indices]


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    """A physical id beyond what is seen is never folded onto another rank's device."""
    with pytest.raises(UsageError, match="DEVICE_ID is 6, but only 4 devices are visible"):
        device_of(3, 6, 4, monkeypatch)


@pytest.mark.parametrize("count", [0, 3])
def test_without_a_device_for_each_rank_the_cpu_serves(monkeypatch, count):
    assert device_of(0, 0, count, monkeypatch) == "cpu"


@pytest.mark.distributed
def test_ranks_wait_for_the_work_of_some_however_long_it_takes(tmp_path):
    """Beyond the time after which a collective fails; and what ends it badly on one rank ends it on all alike, at once."""
    run_program("work_alone.py", tmp_path)
    outcomes = {
        case: {(tmp_path / f"{case}{rank}").read_text() for rank in range(3)} for case in ("work", "refusal", "missing")
    }
    assert outcomes == {
        "work": {"done"},
        "refusal": {"UsageError: rank 2 does not like it\nhint: another one"},
        "missing": {"UnreadableError: /nowhere: No such file or directory"},
    }
