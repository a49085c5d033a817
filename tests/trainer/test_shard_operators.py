"""Each operator of the table: the parts that ranks compute, put together, are what one process computes."""

from itertools import pairwise, product
from math import prod

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from launcher.mesh.boxes import full_box
from launcher.sharding.expression import cuttings
from launcher.trainer.own.cut.operator_graph import trace
from launcher.trainer.own.cut.operators.record import OpContext

RANKS = 4


class Calls(nn.Module):
    """A network that is one call, with weights of these shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in shapes)

    def forward(self, x):
        return self.function(x, *self.weights)


def numbers(*shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def whole_numbers(limit, *shape):
    return torch.randint(limit, shape, generator=torch.Generator().manual_seed(1))


IMAGES = numbers(4, 4, 8, 8)
# Of each operator: what it is called with, the call, and the shapes of its weights.
CALLS = {
    "matmul": (numbers(4, 8), torch.matmul, (8, 12)),
    "matmul of batches": (numbers(2, 4, 6, 8), lambda x, w: x @ w, (2, 4, 8, 4)),
    "matmul of broadcast batches": (numbers(2, 1, 6, 8), lambda x, w: x @ w, (4, 8, 4)),
    "linear": (numbers(4, 8), functional.linear, (12, 8), (12,)),
    "linear of three dims": (numbers(4, 2, 8), functional.linear, (12, 8)),
    "conv2d": (IMAGES, lambda x, w, b: functional.conv2d(x, w, b, stride=2, padding=1), (8, 4, 3, 3), (8,)),
    "conv2d in groups": (IMAGES, lambda x, w: functional.conv2d(x, w, groups=2), (8, 2, 3, 3)),
    "embedding": (whole_numbers(8, 4, 6), functional.embedding, (8, 4)),
    "embedding with padding": (whole_numbers(8, 4, 6), lambda x, w: functional.embedding(x, w, padding_idx=5), (8, 4)),
    "add": (numbers(4, 8), torch.add, (4, 8)),
    "sub of a row": (numbers(4, 8), torch.sub, (8,)),
    "mul by a column": (numbers(4, 8), torch.mul, (4, 1)),
    "div": (numbers(4, 8), lambda x, w: x / w, (4, 8)),
    "numbers": (numbers(4, 8), lambda x: 1 - 2 * x / 4 + (x + 1) ** 3),
    "unary": (numbers(4, 8), lambda x: -(x.square().sqrt() + x.tanh() * x.sigmoid()).exp().log().abs()),
    "activations": (numbers(4, 8), lambda x: functional.gelu(x) + functional.silu(x) * torch.relu(x)),
    "softmax": (numbers(4, 8), lambda x: torch.softmax(x, dim=0)),
    "log_softmax": (numbers(4, 2, 8), lambda x: functional.log_softmax(x, dim=-1)),
    "layer_norm": (numbers(4, 2, 8), lambda x, w, b: functional.layer_norm(x, (8,), w, b), (8,), (8,)),
    "layer_norm without bias": (numbers(4, 2, 8), lambda x, w: functional.layer_norm(x, (2, 8), w), (2, 8)),
    "mean": (numbers(4, 8), torch.mean),
    "mean over a dim": (numbers(4, 2, 8), lambda x: x.mean(dim=(0, -1), keepdim=True)),
    "sum over a dim": (numbers(4, 2, 8), lambda x: x.sum(1)),
    "mse_loss": (numbers(4, 8), functional.mse_loss, (4, 8)),
    "max_pool2d": (IMAGES, lambda x: functional.max_pool2d(x, 3, stride=2, padding=1)),
    "avg_pool2d": (IMAGES, lambda x: functional.avg_pool2d(x, 2)),
    "adaptive_avg_pool2d": (IMAGES, lambda x: functional.adaptive_avg_pool2d(x, 1)),
    "transpose": (numbers(4, 2, 8), lambda x: x.transpose(-1, 0).permute(1, 2, 0)),
    "transposed matrix": (numbers(4, 8), lambda x: x.T + x.t()),
    "reshape": (numbers(4, 2, 8), lambda x: x.view(8, 2, 4).reshape(-1, 16).unsqueeze(1).squeeze().flatten()),
    "unflatten": (numbers(8, 4), lambda x: torch.flatten(x, 0).unflatten(0, (4, 2, -1))),
}


def assembled(traced, operator, way, values):
    """Compute an operator on every rank's parts, sum where ranks have parts of sums, and put the output together."""
    shapes_in = tuple(tuple(values[name].shape) for name in operator.inputs)
    found = torch.full(operator.shape, torch.nan, dtype=torch.float64)
    sums = {}
    for rank in range(way.ranks):
        local = traced.calls[operator.name].local(OpContext(way, rank, shapes_in, operator.shape))
        boxes = [layout.box_of(rank, shape) for layout, shape in zip(way.inputs, shapes_in, strict=True)]
        parts = [
            values[name][box.within(full_box(values[name].shape))]
            for name, box in zip(operator.inputs, boxes, strict=True)
        ]
        output, box = local(*parts), way.output.box_of(rank, operator.shape)
        assert tuple(output.shape) == box.size
        repeated = tuple(place for axis, place in enumerate(coordinate(way.devices, rank)) if axis >= len(way.cuts))
        sums.setdefault((box.start, repeated), []).append(output)
        found[box.within(full_box(operator.shape))] = sum(sums[box.start, repeated])
    assert len({len(parts) for parts in sums.values()}) == 1
    return found


def coordinate(devices, rank):
    return list(product(*map(range, devices)))[rank]


@pytest.mark.parametrize("name", CALLS)
def test_parts_make_the_whole(name):
    x, function, *shapes = CALLS[name]
    network = Calls(function, *shapes)
    traced = trace(network, [x])
    values = {traced.inputs[0]: x, **{path: weight.detach() for path, weight in network.named_parameters()}}
    for operator in traced.graph.operators:
        alone = next(each for each in cuttings(operator.expression, 1))
        values[operator.name] = assembled(traced, operator, alone, values)
        for way in cuttings(operator.expression, RANKS):
            assert way.ranks == prod(way.devices)
            torch.testing.assert_close(
                assembled(traced, operator, way, values), values[operator.name], rtol=1e-12, atol=1e-12
            )
    expected = network(x)
    torch.testing.assert_close(values[traced.graph.output], expected.detach(), rtol=1e-12, atol=1e-12)


@given(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=5), st.data())
def test_any_reshape_keeps_parts_together(factors, data):
    """The elements of a rank's part of the source are those of its part of the target, in the same order."""

    def shape_of():
        cuts = sorted(data.draw(st.sets(st.integers(1, len(factors)))) | {0, len(factors)})
        return tuple(prod(factors[start:stop]) for start, stop in pairwise(cuts))

    source, target = shape_of(), shape_of()
    elements = torch.arange(float(prod(source))).reshape(source)
    traced = trace(Calls(lambda x: x.reshape(target)), [elements])
    if not traced.graph.operators:
        return
    [operator] = traced.graph.operators
    for way in cuttings(operator.expression, 4):
        found = assembled(traced, operator, way, {traced.inputs[0]: elements})
        assert torch.equal(found, elements.reshape(target).double())
