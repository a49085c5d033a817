"""ResNet-50 against torchvision's, and the weights that both start with."""

import importlib.util
import math

import pytest
import torch
from torch.nn import functional

from launcher.trainer.model import resnet
from launcher.trainer.model.resnet import ResNet50, initial_weight, resnet50, set_initial_weights


@pytest.fixture(name="theirs", scope="module")
def _theirs():
    """Gives torchvision's function, also that of a torchvision which was built for another torch.

    Such a one lacks operators without which it cannot be imported. A ResNet uses none of them.
    """
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    operators = None
    if resnet.torchvision_class() is None:
        operators = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    yield resnet.torchvision_class()
    del operators


def meta_model(classes):
    with torch.device("meta"):
        return ResNet50(classes)


def test_it_has_as_many_parameters_as_the_paper():
    assert sum(parameter.numel() for parameter in meta_model(1000).parameters()) == 25_557_032


def test_names_and_shapes_are_those_of_torchvision(theirs):
    """Of parameters and of buffers, in the same order: either class reads what the other has written."""
    with torch.device("meta"):
        expected = theirs(num_classes=1000).state_dict()
    found = meta_model(1000).state_dict()
    ours, wanted = ([(name, each.shape, each.dtype) for name, each in state.items()] for state in (found, expected))
    assert ours == wanted


@pytest.mark.parametrize("size", [32, 64])
def test_values_and_gradients_are_those_of_torchvision(theirs, size):
    """From the same weights, in training and in evaluation; running statistics as well."""
    ours, expected = ResNet50(10).double(), theirs(num_classes=10).double()
    for model in (ours, expected):
        set_initial_weights(model, seed=1)
    image_BCHW = torch.randn(3, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for model in (ours, expected):
        functional.cross_entropy(model(image_BCHW), torch.tensor([1, 0, 9])).backward()
        model.eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(image_BCHW), expected(image_BCHW), rtol=1e-12, atol=1e-12)
    for (name, found), wanted in zip(ours.named_parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found.grad, wanted.grad, rtol=1e-10, atol=1e-12, msg=name)
    for (name, found), wanted in zip(ours.state_dict().items(), expected.state_dict().values(), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14, msg=name)


def test_torchvision_is_taken_where_it_is_installed(theirs):
    with torch.device("meta"):
        assert type(resnet50(10)) is type(theirs())


def test_our_own_is_taken_where_it_is_not(monkeypatch):
    monkeypatch.setattr(resnet, "torchvision_class", lambda: None)
    with torch.device("meta"):
        assert type(resnet50(10)) is ResNet50


def test_initial_weights_depend_on_name_shape_and_seed_alone():
    """Not on the parameters that were made before; every parameter has its own."""
    name, shape = "layer4.0.conv2.weight", torch.Size([512, 512, 3, 3])
    model = ResNet50(10)
    set_initial_weights(model, seed=3)
    assert torch.equal(model.get_parameter(name), initial_weight(name, shape, 3))
    assert not torch.equal(initial_weight(name, shape, 3), initial_weight(name, shape, 4))
    assert not torch.equal(initial_weight(name, shape, 3), initial_weight("layer4.1.conv2.weight", shape, 3))


@pytest.mark.parametrize(
    ("name", "variance"),
    [("conv1.weight", 2 / (64 * 49)), ("layer3.0.conv3.weight", 2 / 1024), ("fc.weight", 1 / (3 * 2048))],
)
def test_initial_weights_are_spread_as_torchvision_spreads_them(theirs, name, variance):
    """Convolutions have variance 2 / fan-out, and the linear layer that of a uniform one within +-inputs^-1/2."""
    torch.manual_seed(1)
    expected = theirs(num_classes=1000).get_parameter(name).detach()
    found = initial_weight(name, expected.shape, 1)
    for weight in (expected, found):
        assert abs(float(weight.mean())) < 5 * math.sqrt(variance / weight.numel())
        assert float(weight.var()) == pytest.approx(variance, rel=5 * math.sqrt(2 / weight.numel()))
    assert float(found.abs().max()) == pytest.approx(float(expected.abs().max()), rel=0.3)


def test_norms_start_at_one_and_biases_at_zero():
    model = ResNet50(10)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(7)
    set_initial_weights(model, seed=1)
    state = model.state_dict()
    assert (state["layer1.0.downsample.1.weight"] == 1).all()
    zeros = (".bias", "running_mean", "num_batches_tracked")
    assert not any(state[name].any() for name in state if name.endswith(zeros))
    assert all((state[name] == 1).all() for name in state if name.endswith("running_var"))
