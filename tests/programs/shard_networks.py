"""Networks for tests of sharding, each with its loss; called with the batch's inputs and labels."""

import math

import torch
from torch import nn
from torch.nn import functional

from launcher.trainer.shard.modules import Add, MatMul, ReduceMean, ReLU, Square, Sub, WithLoss


class Quickstart(nn.Module):
    """The tutorial's network of 32, 16 and 16 features, with its mean squared error."""

    def __init__(self, inner=32, hidden=16, columns=16):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inner, hidden) * 0.1)
        self.weight2 = nn.Parameter(torch.randn(hidden, columns) * 0.1)
        self.matmul, self.relu, self.matmul2 = MatMul(), ReLU(), MatMul()
        self.sub, self.square, self.mean = Sub(), Square(), ReduceMean()

    def forward(self, x, label):
        hidden = self.relu(self.matmul(x, self.weight))
        return self.mean(self.square(self.sub(self.matmul2(hidden, self.weight2), label)))


class Perceptron(nn.Module):
    """Linear layers with biases, a layer norm, and a residual."""

    def __init__(self, inner=16, hidden=32, classes=8):
        super().__init__()
        self.fc1 = nn.Linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.gelu = nn.GELU()
        self.fc2 = nn.Linear(hidden, hidden)
        self.add = Add()
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        hidden = self.gelu(self.norm(self.fc1(x)))
        return self.head(self.add(hidden, torch.tanh(self.fc2(hidden)) * 0.5))


class Attention(nn.Module):
    """Self-attention of several heads with a residual, and its mean squared error."""

    def __init__(self, width=16, heads=4):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.output = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.position = nn.Parameter(torch.randn(8, width) * 0.1)

    def split(self, hidden):
        batch, length, _ = hidden.shape
        return hidden.view(batch, length, self.heads, -1).transpose(1, 2)

    def forward(self, x, label):
        x = x + self.position
        normed = self.norm(x)
        query, key, value = self.split(self.query(normed)), self.split(self.key(normed)), self.split(self.value(normed))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
        mixed = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
        return functional.mse_loss(x + self.output(mixed), label)


class Convolutions(nn.Module):
    """Convolutions with batch norm and a residual, as a block of ResNet has them."""

    def __init__(self, channels=8, classes=4):
        super().__init__()
        self.conv1 = nn.Conv2d(4, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.pool = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(channels)
        self.mean = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(channels, classes)

    def forward(self, x):
        hidden = self.pool(self.relu(self.bn1(self.conv1(x))))
        out = self.bn2(self.conv2(hidden))
        out += hidden
        return self.fc(torch.flatten(self.mean(self.relu(out)), 1))


class Words(nn.Module):
    """The mean of words' embeddings, classified; the table is taken once more, as the weight of a product."""

    def __init__(self, words=24, width=16, classes=8, *, tied=False):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.fc = None if tied else nn.Linear(width, classes)

    def forward(self, ids):
        hidden = self.table(ids)
        if self.fc is None:
            return functional.linear(hidden.sum(1).relu(), self.table.weight)
        return self.fc(hidden.mean(dim=1))


def numbers(seed):
    return torch.Generator().manual_seed(seed)


def drawn(*shape, step):
    return torch.randn(shape, generator=numbers(step), dtype=torch.float64)


def labels(count, classes, step):
    return torch.randint(classes, (count,), generator=numbers(100 + step))


# Of each network: what makes it, and what makes the inputs of a step.
NETWORKS = {
    "quickstart": (Quickstart, lambda step: (drawn(16, 32, step=step), drawn(16, 16, step=step + 50))),
    "perceptron": (
        lambda: WithLoss(Perceptron(), nn.CrossEntropyLoss()),
        lambda step: (drawn(16, 16, step=step), labels(16, 8, step)),
    ),
    "attention": (Attention, lambda step: (drawn(8, 8, 16, step=step), drawn(8, 8, 16, step=step + 50))),
    "convolutions": (
        lambda: WithLoss(Convolutions(), nn.CrossEntropyLoss()),
        lambda step: (drawn(8, 4, 8, 8, step=step), labels(8, 4, step)),
    ),
    "words": (
        lambda: WithLoss(Words(), nn.CrossEntropyLoss()),
        lambda step: (torch.randint(24, (8, 6), generator=numbers(step)), labels(8, 8, step)),
    ),
    "tied words": (
        lambda: WithLoss(Words(tied=True), nn.CrossEntropyLoss()),
        lambda step: (torch.randint(24, (8, 6), generator=numbers(step)), labels(8, 24, step)),
    ),
}


def network_of(name):
    """Make a network with the same weights in every process."""
    torch.manual_seed(0)
    return NETWORKS[name][0]().double()


def inputs_of(name, step):
    return NETWORKS[name][1](step)
