"""The slices of MindSpore's own example of a merge give the values that its documentation of `merge_sliced_parameter` gives.

MindSpore 2.x, mindspore.merge_sliced_parameter: four slices of "network.embedding_table" of three values each. Without a strategy
they are joined along dim 0, to 12 values; with one, they are the parts that its device matrix and tensor map say.
"""

from array import array

import pytest

from launcher.checkpoint.file_layout import MODEL
from launcher.checkpoint.index import NamedBox, read_index
from launcher.checkpoint.model_merge import merge
from launcher.checkpoint.tensors import opened
from launcher.core.records import Layout
from launcher.sharding.layout import TensorLayout
from tests import checkpoints

NAME = "network.embedding_table"
SLICES = (
    (0.00023915, 0.00013939, -0.00098059),
    (0.00015815, 0.00015458, -0.00012125),
    (0.00042165, 0.00029692, -0.00007941),
    (0.00084451, 0.00089960, -0.00010431),
)
S0, S1, S2, S3 = SLICES
# Of each case: the whole shape, the layout of the ranks' slices, and the values in row-major order.
CASES = {
    "without a strategy": ((12,), TensorLayout((4,), ((0,),)), (*S0, *S1, *S2, *S3)),
    "((4, 1),)": ((4, 3), TensorLayout((4,), ((0,), ())), (*S0, *S1, *S2, *S3)),
    "((2, 2),)": ((2, 6), TensorLayout((2, 2), ((0,), (1,))), (*S0, *S1, *S2, *S3)),
    "((2, 2),), the other axis of the devices first": (
        (2, 6),
        TensorLayout((2, 2), ((1,), (0,))),
        (*S0, *S2, *S1, *S3),
    ),
    "((1, 4),)": ((1, 12), TensorLayout((4,), ((), (0,))), (*S0, *S1, *S2, *S3)),
}


@pytest.mark.parametrize("case", CASES)
def test_slices_of_four_ranks_are_merged(tmp_path, case):
    """Each rank's slice is a file, with the box that its layout says; the merged model has the values of the whole."""
    shape, layout, expected = CASES[case]
    boxes = [layout.box_of(rank, shape) for rank in range(4)]
    path = tmp_path / "step-5"
    files = {f"rank{rank}.safetensors": [NamedBox(NAME, box)] for rank, box in enumerate(boxes)}
    whole = array("d", expected)
    checkpoints.write(path, {NAME: shape}, {NAME: [whole]}, files, dtype="F64", layout=Layout(mp=4), kinds=("weight",))
    # What the ranks have written is MindSpore's slices, whatever `write` was told to be the whole.
    for rank, values in enumerate(SLICES):
        assert (path / f"rank{rank}.safetensors").read_bytes() == array("d", values).tobytes()
    with opened(path, read_index(path), lambda _: None, lambda _: None) as stored:
        merge(stored, tmp_path / "model", moments=False)
    assert checkpoints.tensors_in(tmp_path / "model" / MODEL) == {NAME: (shape, whole)}
