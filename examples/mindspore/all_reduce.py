"""An all-reduce with MindSpore 2: start it in the checkout with `tlaunch run --devices 4 -- python examples/mindspore/all_reduce.py`.

Nothing here knows of tlaunch: MindSpore reads MS_ROLE, MS_WORKER_NUM, MS_SCHED_HOST, MS_SCHED_PORT and MS_NODE_ID, as under
msrun. The Python must have MindSpore (`pip install mindspore`), and needs no tlaunch.
"""

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import get_group_size, get_rank, init


class Sum(nn.Cell):
    def __init__(self):
        super().__init__()
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM)

    def construct(self, value):
        return self.all_reduce(value)


init()
rank, size = get_rank(), get_group_size()
total = Sum()(Tensor(np.full((2, 8), rank + 1, np.float32))).asnumpy()
assert (total == size * (size + 1) / 2).all()
print(f"rank {rank} of {size}: the sum over all ranks is {total[0, 0]:g}", flush=True)
