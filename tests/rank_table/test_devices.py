"""Lists of devices, and what lets devices be seen."""

import pytest

from launcher.core.errors import UsageError
from launcher.rank_table.devices import (
    ASCEND_VARIABLES,
    CUDA_VARIABLES,
    FoundDevice,
    parse_device_ids,
    select_devices,
    visible_devices,
)

from .conftest import error_of


def test_ranges_and_single_ids_keep_their_order():
    assert parse_device_ids(" 6, 0-3 ,9 - 10", "--device-ids") == (6, 0, 1, 2, 3, 9, 10)


@pytest.mark.parametrize(("text", "part"), [
    ("", '""'), ("0,,1", '""'), ("a", '"a"'), ("-1", '"-1"'), ("1-", '"1-"'), ("٣", '"٣"'),
    ("7-4", '"7-4" runs backwards'), ("0-3,2", "device 2 twice"), ("0-999999", "device 999999"),
])  # fmt: skip
def test_other_lists_are_refused_with_the_part_at_fault(text, part):
    message = error_of(parse_device_ids, text, "--device-ids")
    assert part in message
    assert "--device-ids" in message


@pytest.mark.parametrize(
    ("text", "hint"), [("[0,8)", '"0-7"'), (" [ 4, 8 ) ", '"4-7"'), ("[0,1]", '"0-3,6"'), ("[4,4)", '"0-3,6"')]
)
def test_brackets_of_other_tools_are_translated(text, hint):
    with pytest.raises(UsageError, match="brackets") as caught:
        parse_device_ids(text, "--device-ids")
    assert hint in caught.value.hint


@pytest.mark.parametrize(("variables", "environment", "found"), [
    (ASCEND_VARIABLES, {"ASCEND_VISIBLE_DEVICES": "0-7", "ASCEND_RT_VISIBLE_DEVICES": "4-7"}, ("ASCEND_RT_VISIBLE_DEVICES", (4, 5, 6, 7))),
    (ASCEND_VARIABLES, {"CUDA_VISIBLE_DEVICES": "0"}, None),
    (CUDA_VARIABLES, {"CUDA_VISIBLE_DEVICES": "2,0,-1,5"}, ("CUDA_VISIBLE_DEVICES", (2, 0))),
])  # fmt: skip
def test_the_first_variable_that_is_set_counts(variables, environment, found):
    """Without any, nothing is hidden. As CUDA does, what follows -1 is not seen."""
    assert visible_devices(environment, variables) == found


@pytest.mark.parametrize(
    ("variables", "text"), [(CUDA_VARIABLES, "-1"), (ASCEND_VARIABLES, ""), (ASCEND_VARIABLES, "  ")]
)
def test_a_variable_that_hides_everything_is_refused(variables, text):
    name = variables[-1]
    assert error_of(visible_devices, {name: text}, variables) == f"{name} hides all devices"


UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f0aa-d72c-4106-c12f-20bd9faed9f6", "GPU-5d5ba0d6-d33d")
GPUS = tuple(FoundDevice(one, uuid=uuid) for one, uuid in enumerate(UUIDS))


def test_uuids_of_gpus_become_their_numbers():
    for text, ids in ((UUIDS[1], (1,)), (f"GPU-5d,{UUIDS[0]}", (2, 0)), ("2, GPU-8932f9", (2, 0))):
        assert visible_devices({"CUDA_VISIBLE_DEVICES": text}, CUDA_VARIABLES, GPUS) == ("CUDA_VISIBLE_DEVICES", ids)


@pytest.mark.parametrize(("text", "part"), [
    ("GPU-8932f", "GPU-8932f, but 2 GPUs"), ("GPU-77", "GPU-77, but no GPUs"), ("MIG-5", "MIG-5, a part of a GPU"),
    ("0,GPU-8932f9", "device 0 twice"),
])  # fmt: skip
def test_uuids_that_are_no_gpu_of_this_machine(text, part):
    message = error_of(visible_devices, {"CUDA_VISIBLE_DEVICES": text}, CUDA_VARIABLES, GPUS)
    assert message.startswith("CUDA_VISIBLE_DEVICES names ")
    assert part in message


def test_device_that_does_not_exist_is_named():
    found = [FoundDevice(one) for one in (0, 1, 2, 3)]
    assert select_devices(found, (3, 1), "X") == (FoundDevice(3), FoundDevice(1))
    with pytest.raises(UsageError) as caught:
        select_devices(found, (2, 4, 5), "X")
    assert (
        str(caught.value)
        == "X names devices 4-5, but this machine has devices 0-3\nhint: select only devices of this machine"
    )
