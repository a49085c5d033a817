"""Checkpoints that MindSpore itself writes and reads, by a Python that has it.

mindspore_files.py write DIRECTORY     types.ckpt, with a CRC; adam.ckpt of a training of 3 steps; what they hold as .npz
mindspore_files.py read FILE NPZ       what mindspore.load_checkpoint finds in FILE
mindspore_files.py resume FILE         exit 1 unless it is all that the training of adam.ckpt needs to go on
"""

import sys
from pathlib import Path

import mindspore
import numpy as np
from mindspore import Tensor, nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first = nn.Dense(3, 4)
        self.second = nn.Dense(4, 2, has_bias=False)

    def construct(self, x):
        return self.second(ops.relu(self.first(x)))


def training():
    """A network, and what takes a step of it with nn.Adam."""
    mindspore.set_seed(1)
    net = Net()
    optimizer = nn.Adam(net.trainable_params(), learning_rate=0.01, beta1=0.9, beta2=0.98)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    inputs = Tensor(np.linspace(-1, 1, 18, dtype=np.float32).reshape(6, 3))
    labels = Tensor(np.linspace(1, 0, 12, dtype=np.float32).reshape(6, 2))
    return step, lambda: step(inputs, labels)


def arrays(parameters):
    return {
        name: np.array(value) if isinstance(value, str) else value.astype(mindspore.float32).asnumpy()
        if value.dtype == mindspore.bfloat16 else value.asnumpy()
        for name, value in parameters.items()
    }  # fmt: skip


def write(directory):
    step, take = training()
    for _ in range(3):
        take()
    mindspore.save_checkpoint(step, str(directory / "adam.ckpt"), append_dict={"epoch_num": 2, "note": "hello"})
    values = {
        "a.single": Tensor(np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3)),
        "a.b.half": Tensor(np.linspace(0, 1, 4).astype(np.float16)),
        "brain": Tensor(np.linspace(0, 1, 4, dtype=np.float32), mindspore.bfloat16),
        "double": Tensor(np.linspace(0, 1, 3)),
        "whole": Tensor(np.arange(4, dtype=np.int64)),
        "scalar": Tensor(1.5, mindspore.float32),
        "truth": Tensor(np.array([True, False])),
    }
    pairs = [{"name": name, "data": value} for name, value in values.items()]
    mindspore.save_checkpoint(pairs, str(directory / "types.ckpt"), crc_check=True)
    for name in ("adam", "types"):
        read(directory / f"{name}.ckpt", directory / f"{name}.npz")


def read(file, npz):
    np.savez(npz, **arrays(mindspore.load_checkpoint(str(file), crc_check=True)))


def resume(file):
    _, take = training()
    for _ in range(3):
        take()
    expected = [float(take().asnumpy()) for _ in range(2)]
    again, take = training()
    missing = mindspore.load_param_into_net(again, mindspore.load_checkpoint(str(file)), strict_load=True)
    found = [float(take().asnumpy()) for _ in range(2)]
    print(missing, expected, found)
    return int(missing[0] not in ([], ["learning_rate"]) or found != expected)


if __name__ == "__main__":
    action, *paths = sys.argv[1:]
    sys.exit({"write": write, "read": read, "resume": resume}[action](*map(Path, paths)))
