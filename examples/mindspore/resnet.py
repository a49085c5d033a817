"""ResNet-50 on CIFAR-10 with MindSpore 2, data parallel: each rank computes its part of every batch, gradients are averaged.

In the checkout, with a Python that has MindSpore:

    tlaunch data sample --recipe resnet50 --output cifar      # a small set of images, or unpack cifar-10-binary.tar.gz
    tlaunch run --devices 2 -- python examples/mindspore/resnet.py --data cifar --steps 20

On Ascend add `--rank-table rank_table_8pcs.json`. Nothing here knows of tlaunch; the program runs under msrun, too.
"""

import argparse
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import dataset, nn, ops
from mindspore.communication import get_group_size, get_rank, init
from mindspore.dataset import vision

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and the width of their 3x3 convolutions
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)  # of red, green and blue over CIFAR-10


def convolution(channels, width, size, stride=1):
    return nn.Conv2d(channels, width, size, stride, pad_mode="pad", padding=size // 2, weight_init="HeNormal")


class Bottleneck(nn.Cell):
    """A residual block (He et al. 2015, arXiv:1512.03385): 1x1 down, 3x3 with the stride, 1x1 up."""

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1, self.bn1 = convolution(channels, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width)
        self.has_downsample = stride > 1 or channels != 4 * width
        if self.has_downsample:
            self.downsample = nn.SequentialCell(convolution(channels, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def construct(self, value):
        shortcut = self.downsample(value) if self.has_downsample else value
        value = ops.relu(self.bn1(self.conv1(value)))
        value = ops.relu(self.bn2(self.conv2(value)))
        return ops.relu(self.bn3(self.conv3(value)) + shortcut)


class ResNet50(nn.Cell):
    """Logits of ten classes for images of 32x32 pixels or more."""

    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = convolution(3, 64, 7, 2), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        stages, channels = [], 64
        for blocks, width in STAGES:
            cells = []
            for block in range(blocks):
                cells.append(Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1))
                channels = 4 * width
            stages.append(nn.SequentialCell(cells))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Dense(channels, 10)

    def construct(self, value):
        value = self.pool(ops.relu(self.bn1(self.conv1(value))))
        value = self.layer4(self.layer3(self.layer2(self.layer1(value))))
        return self.fc(value.mean((2, 3)))


class Images:
    """The training images of CIFAR-10's binary files, of which each may have any number of records."""

    def __init__(self, directory):
        files = sorted(Path(directory).glob("**/data_batch_*.bin"))
        records = np.concatenate([np.fromfile(path, np.uint8) for path in files]).reshape(-1, 1 + 3 * 32 * 32)
        self.labels = records[:, :1].astype(np.int32)
        self.pixels = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pixels[index], self.labels[index]


def batches(directory, batch_size, rank, size):
    """Return a dataset of this rank's part of every batch of `batch_size` images, cropped, flipped and normalised."""
    change = [
        vision.RandomCrop(32, padding=4),
        vision.RandomHorizontalFlip(),
        vision.Rescale(1 / 255, 0),
        vision.Normalize(MEAN, DEVIATION),
        vision.HWC2CHW(),
    ]
    data = dataset.GeneratorDataset(Images(directory), ["image", "label"], shuffle=True, num_shards=size, shard_id=rank)
    return data.map(change, "image").batch(batch_size // size, drop_remainder=True)


def step_of(network, learning_rate, momentum):
    """Return the function that trains one step, and returns this rank's loss of it before that."""
    optimizer = nn.Momentum(network.trainable_params(), learning_rate, momentum)
    average = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=get_group_size())

    def loss_of(image, label):
        return ops.cross_entropy(network(image), label.squeeze(1))

    value_and_gradients = ms.value_and_grad(loss_of, None, optimizer.parameters)

    def step(image, label):
        loss, gradients = value_and_gradients(image, label)
        return ops.depend(loss, optimizer(average(gradients)))

    return step


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="directory of CIFAR-10's binary files")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32, help="images of a step, over all ranks")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    options = parser.parse_args()

    init()
    rank, size = get_rank(), get_group_size()
    ms.set_seed(1)  # the same weights on every rank
    network = ResNet50()
    network.set_train()
    step = ms.jit(step_of(network, options.learning_rate, momentum=0.9))
    number = 0
    while number < options.steps:
        for image, label in batches(options.data, options.batch_size, rank, size).create_tuple_iterator():
            began = time.perf_counter()
            loss = float(step(image, label).asnumpy())
            number += 1
            print(f"step: {number}, loss is {loss:.6f}, {time.perf_counter() - began:.2f} s", flush=True)
            if number == options.steps:
                break


if __name__ == "__main__":
    main()
