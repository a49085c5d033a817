"""What is said in the sections of MindSpore's messages, of which these are real ones of 2.10, shortened."""

import pytest

from launcher.supervise.diagnosis.mindspore_errors import first_words, place_in_network

RULE = "-" * 66
DATASET = f"""Exception thrown from dataset pipeline. Refer to 'Dataset Pipeline Error Message'.

{RULE}
- Dataset Pipeline Error Message:
{RULE}
[ERROR] Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin, re-download dataset.

{RULE}
- C++ Call Stack: (For framework developers)
{RULE}
mindspore/ccsrc/minddata/dataset/data_source/cifar_op.cc(142).
"""
USERS_CODE = f"""Exception thrown from user defined Python function in dataset.

{RULE}
- Python Call Stack:
{RULE}
Traceback (most recent call last):
  File "train.py", line 5, in __getitem__
ValueError: Unable to avoid copy while creating an array as requested.

{RULE}
- Dataset Pipeline Error Message:
{RULE}
[ERROR] Execute user Python code failed, check 'Python Call Stack' above.
"""
NETWORK = """For 'MatMulExt' op, shape1[-1] must be equal to shape2[-2], but got 3 and 4.

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ops/infer/ops_func_impl//matmul_ext.cc:43 CheckMatMulShapes

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /home/me/train.py:5, 15~31
        return ops.matmul(x, y)
# 1 In file /usr/lib/python3/mindspore/ops/function/math_func.py:8724, 11~49
"""
KERNEL = """
----------------------------------------------------
- Kernel error:
----------------------------------------------------
Launch kernel failed: Default/AllReduce-op0

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------

# In file /usr/lib/python3/mindspore/nn/wrap/grad_reducer.py:365~388, 4~23
    @jit(backend="ms_backend")
    ^


----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ccsrc/backend/ms_backend/runtime/actors/base/kernel_actor.cc:995 OnMemoryAllocFinish
"""


@pytest.mark.parametrize(
    ("message", "words", "place"),
    [
        (KERNEL, "Launch kernel failed: Default/AllReduce-op0", None),
        (DATASET, "Invalid cifar10 file, failed to read data from: cifar/data_batch_1.bin, re-download dataset.", None),
        (USERS_CODE, "Exception thrown from user defined Python function in dataset.", None),
        (f"Refer to 'Dataset Pipeline Error Message'.\n{USERS_CODE}", "ValueError: Unable to avoid copy while creating an array as requested.", None),
        (NETWORK, "For 'MatMulExt' op, shape1[-1] must be equal to shape2[-2], but got 3 and 4.", "train.py:5"),
        ("no such word\nand more", "no such word", None),
        ("Refer to 'Nothing'.", "Refer to 'Nothing'.", None),
        ("", "", None),
    ],
)  # fmt: skip
def test_the_section_that_says_it_is_found(message, words, place):
    assert (first_words(message), place_in_network(message)) == (words, place)
