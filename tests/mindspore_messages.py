"""Messages of MindSpore's exceptions, real ones of 2.10, shortened, and the traceback that Python prints before one."""

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
ITEM = f"""Exception thrown from user defined Python function in dataset. \n
{RULE}
- Python Call Stack: \n{RULE}
Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/mindspore/dataset/engine/datasets_user_defined.py", line 136, in _cpp_sampler_fn
    val = dataset[i]
          ~~~~~~~^^^
  File "/home/me/dset.py", line 18, in __getitem__
    raise KeyError("label of image 40")
KeyError: 'label of image 40'

{RULE}
- Dataset Pipeline Error Message: \n{RULE}
[ERROR] Execute user Python code failed, check 'Python Call Stack' above.

{RULE}
- C++ Call Stack: (For framework developers) \n{RULE}
mindspore/ccsrc/minddata/dataset/data_source/generator_op.cc(383).



"""
MAP = f"""Exception thrown from user defined Python function in dataset. \n
{RULE}
- Python Call Stack: \n{RULE}
map operation: [PyFunc] failed. Error description:
ValueError: Traceback (most recent call last):
  File "/v/lib/python3.11/site-packages/mindspore/dataset/transforms/py_transforms_util.py", line 202, in __call__
    result = self.transform(*args)
             ^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/dset.py", line 22, in scale
    return x.reshape(17)
           ^^^^^^^^^^^^^
ValueError: cannot reshape array of size 16 into shape (17,)

{RULE}
- Dataset Pipeline Error Message: \n{RULE}
[ERROR] Execute user Python code failed, check 'Python Call Stack' above.

{RULE}
- C++ Call Stack: (For framework developers) \n{RULE}
mindspore/ccsrc/minddata/dataset/engine/datasetops/map_op/map_job.h(56).
"""
SHAPES = "For 'MatMul' the input dimensions must be equal, but got 'x1_col': 32 and 'x2_row': 31."
NETWORK = f"""{SHAPES}

----------------------------------------------------
- C++ Call Stack: (For framework developers)
----------------------------------------------------
mindspore/ops/infer/ops_func_impl//matmul.cc:78 InferShape2D

----------------------------------------------------
- The Traceback of Net Construct Code:
----------------------------------------------------
# 0 In file /v/lib/python3.11/site-packages/mindspore/ops/composite/base.py:615, 31~56
                        return grad_(fn, weights)(*args)
                               ^~~~~~~~~~~~~~~~~~~~~~~~~
# 1 In file /home/me/net.py:47, 23~29
        return loss_fn(net(x), y)
                       ^~~~~~
# 2 In file /home/me/net.py:18, 12~23
        x = self.fc2(x)
            ^~~~~~~~~~~
# 3 In file /home/me/net.py:18, 12~20
        x = self.fc2(x)
            ^~~~~~~~
# 4 In file /v/lib/python3.11/site-packages/mindspore/nn/layer/basic.py:808~809, 8~43
        if self.has_bias:
# 8 In file /v/lib/python3.11/site-packages/mindspore/nn/layer/basic.py:807, 12~39
        x = self.matmul(x, self.weight)
            ^~~~~~~~~~~~~~~~~~~~~~~~~~~
 (See file '/home/me/rank_0/om/analyze_fail.ir' for more details.)
"""
TRACEBACK = """Traceback (most recent call last):
  File "/home/me/net.py", line 51, in main
    loss, g = grad(x, y)
  File "/v/lib/python3.11/site-packages/mindspore/graph/api.py", line 256, in wrapper
    results = fn(*arg, **kwargs)
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
