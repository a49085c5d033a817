"""ResNet-50 (He et al. 2015, arXiv:1512.03385) with the layers, parameter names and outputs of torchvision's.

As in torchvision ("v1.5"), the 3x3 convolution of a stage's first block halves the image, instead of the 1x1 before it.
Sides of the image after each layer, in pixels:

    32x32 in:   conv1 16, pool 8, layer1 8, layer2 4, layer3 2, layer4 1
    224x224 in: conv1 112, pool 56, layer1 56, layer2 28, layer3 14, layer4 7

Shapes: B images, C channels, H and W pixels, K classes.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from launcher.trainer.model.initial import generator_of

STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks, and the width of their 3x3 convolutions
EXPANSION = 4  # output channels of a block per channel of its 3x3 convolution


class Bottleneck(nn.Module):
    """A residual block of 1x1, 3x3 and 1x1 convolutions with `width`, `width` and EXPANSION * `width` channels."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        given = width * EXPANSION
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, given, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(given)
        self.downsample: nn.Sequential | None = None
        if stride > 1 or channels != given:
            self.downsample = nn.Sequential(nn.Conv2d(channels, given, 1, stride, bias=False), nn.BatchNorm2d(given))

    def forward(self, hidden_BCHW: Tensor) -> Tensor:
        shortcut_BCHW = hidden_BCHW if self.downsample is None else self.downsample(hidden_BCHW)
        hidden_BCHW = functional.relu(self.bn1(self.conv1(hidden_BCHW)), inplace=True)
        hidden_BCHW = functional.relu(self.bn2(self.conv2(hidden_BCHW)), inplace=True)
        hidden_BCHW = self.bn3(self.conv3(hidden_BCHW))
        hidden_BCHW += shortcut_BCHW
        return functional.relu(hidden_BCHW, inplace=True)


class ResNet50(nn.Module):
    """ResNet-50. It returns logits (BK) for images (BCHW) with 3 channels and at least 32x32 pixels."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for number, (blocks, width) in enumerate(STAGES, start=1):
            strides = [1 if number == 1 else 2] + [1] * (blocks - 1)
            stage = nn.Sequential()
            for stride in strides:
                stage.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
            self.add_module(f"layer{number}", stage)
        self.fc = nn.Linear(channels, classes)

    def forward(self, image_BCHW: Tensor) -> Tensor:
        hidden_BCHW = functional.relu(self.bn1(self.conv1(image_BCHW)), inplace=True)
        hidden_BCHW = functional.max_pool2d(hidden_BCHW, 3, stride=2, padding=1)
        for number in range(1, len(STAGES) + 1):
            hidden_BCHW = self.get_submodule(f"layer{number}")(hidden_BCHW)
        return self.fc(hidden_BCHW.mean(dim=(2, 3)))


def resnet50(classes: int) -> nn.Module:
    """Return a ResNet-50 with random weights: torchvision's model if it can be imported, else `ResNet50`."""
    theirs = torchvision_class()
    return ResNet50(classes) if theirs is None else theirs(num_classes=classes)


def torchvision_class() -> Any | None:
    """Return torchvision's function that creates a ResNet-50, or None if torchvision cannot be imported."""
    try:
        from torchvision.models import resnet50 as theirs  # noqa: PLC0415 - optional, and slow to import
    except (ImportError, RuntimeError):  # a torchvision built for another torch misses operators
        return None
    return theirs


def initial_weight(name: str, full_shape: torch.Size, seed: int) -> Tensor:
    """Return the initial value of the parameter `name` of a ResNet as a float32 tensor on the CPU.

    The value depends only on the arguments. Norms are 1 and biases 0. As in torchvision, convolutions are normal with
    variance 2 / (outputs * height * width) (He et al. 2015, arXiv:1502.01852, by the fan-out), and the weights of the
    linear layer are uniform within +-inputs^-1/2.
    """
    if name.endswith(".bias"):
        return torch.zeros(full_shape)
    if len(full_shape) == 1:
        return torch.ones(full_shape)
    generator = generator_of(name, seed)
    if len(full_shape) == 2:
        bound = full_shape[1] ** -0.5
        return torch.empty(full_shape).uniform_(-bound, bound, generator=generator)
    fan_out = full_shape[0] * math.prod(full_shape[2:])
    return torch.normal(0.0, math.sqrt(2 / fan_out), full_shape, generator=generator)


@torch.no_grad()
def set_initial_weights(model: nn.Module, seed: int) -> None:
    """Set the weights of a ResNet to `initial_weight`, and reset the running statistics of its batch norms."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_weight(name, parameter.shape, seed))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
