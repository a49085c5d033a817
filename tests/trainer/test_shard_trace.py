"""From a network to its graph: names, what is refused, and the tutorial's listing."""

import importlib.util
import operator
import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.sharding.plan import plan_of
from launcher.trainer.model.resnet import resnet50
from launcher.trainer.own.cut.modes import cuttings_for
from launcher.trainer.own.cut.operator_graph import trace
from launcher.trainer.shard.api import sharded
from launcher.trainer.shard.modules import MatMul, ReLU, WithLoss, shard

TESTS = Path(__file__).parents[1]


def module_at(path):
    spec = importlib.util.spec_from_file_location(f"shard_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


GRAPHS = module_at(TESTS / "sharding" / "networks.py")
NETWORKS = module_at(TESTS / "programs" / "shard_networks.py")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.again = nn.ReLU()

    def forward(self, x):
        return self.again(self.fc(self.again(x))) + x + 1


class Network(nn.Module):
    def __init__(self, body=None):
        super().__init__()
        self.body = body or (lambda x: x)
        self.blocks = nn.Sequential(Block(), nn.Dropout(0.0))

    def forward(self, x):
        return self.body(self.blocks(x)).sum()


def traced_body(body):
    return trace(Network(body), [torch.empty(4, 8)])


def names(traced):
    return [each.name for each in traced.graph.operators]


def test_the_tutorials_network_has_the_graph_that_is_written_down():
    network = NETWORKS.Quickstart()
    traced = trace(network, [torch.empty(16, 32), torch.empty(16, 16)])
    written = GRAPHS.quickstart()
    assert traced.graph.operators == written.operators
    assert {each.name: each for each in traced.graph.leaves} == {each.name: each for each in written.leaves}
    assert traced.graph.output == written.output


def test_the_tutorials_listing():
    """The strategy that its first product is given in the network's code leads to the listing's others."""
    network = NETWORKS.Quickstart()
    network.matmul.shard(((2, 4), (4, 1)))
    traced = trace(network, [torch.empty(16, 32), torch.empty(16, 16)])
    found = cuttings_for(traced, "auto_parallel", {}, 8, search_mode="sharding_propagation")
    assert (found["relu"].strategy, found["matmul2"].strategy) == (((2, 4),), ((2, 4), (4, 1)))
    forward = [each for each in plan_of(traced.graph, found, 8).collectives() if each.phase == "forward"]
    assert [(each.kind, each.group_of(0), each.group_of(4)) for each in forward[:2]] == [
        ("all_reduce", (0, 1, 2, 3), (4, 5, 6, 7)),
        ("slice", (0, 1, 2, 3), (4, 5, 6, 7)),
    ]


def test_names_are_paths():
    """An operator has its module's path, the function's name where it is called within one, and a number where that is taken."""
    assert names(traced_body(None)) == [
        "blocks.0.again", "blocks.0.fc.matmul", "blocks.0.fc.bias_add", "blocks.0.again_1", "blocks.0.add",
        "blocks.0.add_1", "sum",
    ]  # fmt: skip


def test_a_loss_changes_no_name():
    traced = trace(WithLoss(nn.Sequential(nn.Linear(4, 2)), nn.MSELoss()), [torch.empty(2, 4), torch.empty(2, 2)])
    assert names(traced) == ["0.matmul", "0.bias_add", "loss"]
    assert set(traced.parameters) == {"0.weight", "0.bias"}


def test_only_what_the_loss_needs_is_an_operator():
    def body(x):
        x.exp()
        return x * 2

    assert names(traced_body(body))[-2:] == ["mul", "sum"]


def test_shapes_are_numbers_while_a_network_is_traced():
    assert traced_body(lambda x: x.view(x.shape[0] * 2, x.size(1) // 2)).graph.operators[-2].shape == (8, 4)


def test_what_is_changed_in_place_is_used_as_changed():
    def body(x):
        y = x * 2
        z = functional.relu_(y)
        y += 1
        return z

    operators = traced_body(body).graph.operators
    assert [each.kind for each in operators[-4:]] == ["mul", "relu", "add", "sum"]
    assert operators[-2].inputs == (operators[-3].name,)
    assert names(traced_body(lambda x: operator.iadd(x.view(-1), 1)))[-3:] == ["view", "add", "sum"]


def test_arguments_may_be_given_by_name():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2, 8))

        def forward(self, x, label):
            hidden = functional.relu(input=functional.linear(input=x, weight=self.weight), inplace=True)
            return functional.cross_entropy(input=hidden, target=label)

    traced = trace(Named(), [torch.empty(4, 8), torch.empty(4, dtype=torch.long)])
    assert names(traced) == ["linear", "relu", "cross_entropy"]


def test_what_changes_nothing_in_place_is_no_operator():
    traced = trace(nn.Sequential(nn.Dropout(0.0, inplace=True), nn.ReLU()), [torch.empty(4, 8)])
    assert names(traced) == ["1"]


def test_a_constant_in_the_code_is_a_leaf():
    network = Network(lambda x: x + torch.ones(8))
    attributes = set(vars(network))
    traced = trace(network, [torch.empty(4, 8)])
    [(name, constant)] = traced.buffers.items()
    assert torch.equal(constant, torch.ones(8))
    assert traced.graph.by_name[name].shape == (8,)
    assert set(vars(network)) == attributes


def test_a_shared_parameter_is_one_leaf():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x)).sum()

    traced = trace(Tied(), [torch.empty(4, 8)])
    assert list(traced.parameters) == ["first.weight"]
    assert len(traced.graph.consumers["first.weight"]) == 2


def test_frozen_weights_and_buffers_are_leaves_without_a_gradient():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(8, 8, bias=False).requires_grad_(False)
            self.register_buffer("mask", torch.ones(8))

        def forward(self, x):
            return (self.fc(x) * self.mask).sum()

    traced = trace(Frozen(), [torch.empty(4, 8)])
    assert (list(traced.parameters), sorted(traced.buffers)) == ([], ["fc.weight", "mask"])
    assert not traced.graph.needs_gradient


def test_a_large_network_is_traced_without_its_weights():
    with torch.device("meta"):
        network = WithLoss(resnet50(10), nn.CrossEntropyLoss())
    traced = trace(network, [torch.empty(8, 3, 32, 32), torch.empty(8, dtype=torch.long)])
    assert len(traced.graph.operators) == 176
    found = cuttings_for(traced, "semi_auto_parallel", {"conv1": ((8, 1, 1, 1), (1, 1, 1, 1))}, 8)
    assert found == cuttings_for(traced, "data_parallel", {}, 8)
    assert len(plan_of(traced.graph, found, 8).parameter_sums) == 1


def second_after_adding(first, second):
    first += 1
    return second


REFUSED = {
    "decides by a value": lambda x: x if x.sum() > 0 else -x,
    "unknown function": torch.cumsum,
    "unknown method": lambda x: x.cumsum(0),
    "dropout in training": lambda x: functional.dropout(x, 0.1),
    "a view changed in place": lambda x: x.view(-1).mul_(2),
    "in place under a view": lambda x: (x.view(-1).sum(), x.mul_(2))[1],
    "addition to a view": lambda x: second_after_adding(x.view(-1), x),
    "addition under a view": lambda x: second_after_adding(x, x.view(-1)),
    "addition to one of two views": lambda x: second_after_adding(x.view(-1), x.t()),
    "a product with a vector": lambda x: x @ x.sum(0),
    "softmax without a dim": functional.softmax,
    "an option": lambda x: x.sum(dtype=torch.float64),
    "an argument that does not fit": lambda x: x.view(3, 5),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused(name, snapshot):
    body = REFUSED[name] if name != "unknown function" else lambda x: torch.cumsum(x, 0)
    with pytest.raises(UsageError) as caught:
        traced_body(body)
    assert without_line(caught.value) == snapshot


def without_line(error):
    return re.sub(r"^test_shard_trace\.py:\d+", "<line>", str(error))


class Pair(nn.Module):
    def forward(self, x, y):
        return x, y


class Twice(nn.Module):
    def forward(self, x):
        return x, x


def strategy_on_a_block():
    network = Network()
    shard(network.blocks[0], ((2, 1),))
    trace(network, [torch.empty(4, 8)])


MISUSED = {
    "no example": lambda: trace(Pair(), [torch.empty(2)]),
    "several outputs": lambda: trace(Pair(), [torch.empty(2), torch.empty(2)]),
    "several outputs for a loss": lambda: trace(WithLoss(Twice(), nn.MSELoss()), [torch.empty(2), torch.empty(2)]),
    "a module": lambda: trace(nn.Sequential(nn.LSTM(8, 8)), [torch.empty(4, 8)]),
    "a strategy of what is no operator": strategy_on_a_block,
    "a strategy by a wrong name": lambda: cuttings_for(traced_body(None), "auto_parallel", {"fc9": ((2, 1),)}, 2),
    "no such search": lambda: cuttings_for(traced_body(None), "auto_parallel", {}, 2, search_mode="dynamic_programing"),
    "no such mode": lambda: cuttings_for(traced_body(None), "parallel", {}, 2),
}


@pytest.mark.parametrize("name", MISUSED)
def test_misuse_is_refused(name, snapshot):
    with pytest.raises(UsageError) as caught:
        MISUSED[name]()
    assert without_line(caught.value) == snapshot


@pytest.mark.parametrize(("mode", "ranks"), [("stand_alone", 2), ("data_parallel", 3)])
def test_ranks_without_work_are_refused(mode, ranks, snapshot):
    with pytest.raises(RefusedLayoutError) as caught:
        cuttings_for(traced_body(None), mode, {}, ranks)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("strategy", "error"), [(((1, 1), (1, 1)), None), ("((1, 1), (1, 1))", None), ((1, 1), UsageError)]
)
def test_a_strategy_may_be_text_and_is_checked(strategy, error):
    begun = sharded(nn.Linear(8, 8), [torch.ones(4, 8)] * 2, loss=nn.MSELoss(), strategies={"network.matmul": strategy})
    if error is None:
        with begun as network:
            assert network.strategies["network.matmul"] == ((1, 1), (1, 1))
    else:
        with pytest.raises(error):
            begun.__enter__()


def test_a_layout_that_the_mode_ignores_is_refused(monkeypatch):
    for name, value in (
        ("RANK", 0),
        ("WORLD_SIZE", 4),
        ("TLAUNCH_DP", 2),
        ("TLAUNCH_MP", 2),
        ("MASTER_ADDR", "::1"),
        ("MASTER_PORT", 1),
    ):
        monkeypatch.setenv(name, str(value))
    with pytest.raises(RefusedLayoutError, match="dp = 2 and mp = 2"):
        sharded(nn.Linear(8, 8), [torch.ones(4, 8)] * 2, loss=nn.MSELoss()).__enter__()


def test_a_modules_strategy_is_that_of_its_first_operator():
    """Given in the code or by name, where a name takes precedence, and for every call of the module."""
    network = Network()
    shard(network.blocks[0].fc, ((2, 1), (2, 1)))
    shard(network.blocks[0].again, ((1, 4),))
    traced = trace(network, [torch.empty(4, 8)])
    found = cuttings_for(traced, "semi_auto_parallel", {}, 4)
    assert found["blocks.0.fc.matmul"].strategy == ((2, 1), (2, 1))
    assert found["blocks.0.again"].strategy == found["blocks.0.again_1"].strategy == ((1, 4),)
    found = cuttings_for(traced, "semi_auto_parallel", {"blocks.0.fc": ((1, 4), (1, 4))}, 4)
    assert found["blocks.0.fc.matmul"].strategy == ((1, 4), (1, 4))


def test_data_parallel_cuts_the_batch_alone():
    traced = trace(NETWORKS.network_of("attention"), NETWORKS.inputs_of("attention", 0))
    for name, cutting in cuttings_for(traced, "data_parallel", {}, 4).items():
        assert cutting.used == 4, name
        assert cutting.inputs[0].cuts[0] == 4, name
    assert list(plan_of(traced.graph, cuttings_for(traced, "data_parallel", {}, 1), 1).collectives()) == []


def test_modules_are_the_functions():
    x, w = torch.randn(4, 8), torch.randn(8, 2)
    assert torch.equal(ReLU()(MatMul()(x, w)), (x @ w).relu())


def _cloned(hidden):
    other = hidden.clone()
    other.relu_()
    return hidden * 3 + other


def test_a_clone_is_another_tensor():
    traced = traced_body(_cloned)
    [product] = [each for each in traced.graph.operators if each.kind == "mul"]
    [clone] = [each for each in traced.graph.operators if each.kind == "clone"]
    assert product.inputs == clone.inputs


@pytest.mark.parametrize("view", [
    lambda x: x.flatten(), torch.flatten, lambda x: torch.transpose(x, 0, 1), lambda x: x.unsqueeze(0), nn.Flatten(0),
])  # fmt: skip
def test_what_is_seen_in_another_way_is_not_changed_in_place(view):
    def body(hidden):
        other = view(hidden)
        functional.relu(hidden, inplace=True)
        return other.sum() + hidden

    with pytest.raises(UsageError):
        traced_body(body)


class Counting(nn.Module):
    def __init__(self, deed):
        super().__init__()
        self.fc, self.calls, self.deed = nn.Linear(8, 8), 0, deed
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x):
        return self.deed(self, self.fc(x)).sum()


def _counts(network, x):
    network.calls += 1
    return x * network.calls


def _scales(network, x):
    network.scale.add_(1)
    return x * network.scale


def _without_gradients(_network, x):
    with torch.no_grad():
        return x + 1


def _in_another_type(_network, x):
    with torch.autocast("cpu", torch.bfloat16):
        return x + 1


@pytest.mark.parametrize(
    "deed", [_counts, _scales, lambda _network, x: x + torch.randn(8), _without_gradients, _in_another_type]
)
def test_a_network_that_does_more_than_its_calls_is_refused(deed):
    with pytest.raises(UsageError):
        trace(Counting(deed), [torch.empty(4, 8)])


def test_hooks_and_parametrizations_are_refused():
    hooked, parametrized = nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    hooked.register_forward_hook(lambda _module, _inputs, output: output * 2)
    for network in (hooked, parametrized):
        with pytest.raises(UsageError):
            trace(network, [torch.empty(4, 8)])
