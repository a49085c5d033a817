"""Linear layers by oneDNN: torch's own numbers, whatever the shapes and strides."""

import pytest
import torch
from torch.nn import functional

from launcher.trainer.model import linear as module
from launcher.trainer.model.linear import Linear, linear, product

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch's own"])
def by_onednn(request, monkeypatch):
    if not request.param:
        monkeypatch.setattr(module, "_ONEDNN", None)
    elif module._ONEDNN is None:
        pytest.skip("this torch has no oneDNN")
    return request.param


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 7, 16), (1, 1, 16), (5, 16), (0, 16)], ids=str)
def test_values_and_gradients_are_those_of_float64(shape, has_bias, by_onednn):
    """Also where what comes back is no contiguous tensor, as from attention's heads."""
    numbers = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(*size, generator=numbers) for size in (shape, (6, 16), (6,)))
    upstream = torch.randn(*shape[:-2], 6, shape[-2], generator=numbers).transpose(-1, -2)
    ours, exact = (
        [tensor.detach().to(dtype).requires_grad_() for tensor in (hidden, weight, *([bias] if has_bias else []))]
        for dtype in (torch.float32, torch.float64)
    )
    output, expected = linear(*ours), functional.linear(*exact)
    output.backward(upstream)
    expected.backward(upstream.double())

    used = type(output.grad_fn).__name__ == "_LinearBackward"
    assert used == (by_onednn and hidden.numel() > 0)
    pairs = [(output, expected), *((mine.grad, theirs.grad) for mine, theirs in zip(ours, exact, strict=True))]
    for mine, theirs in pairs:
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_multiplied_by_torch(dtype):
    """Bit by bit."""
    layer, hidden = Linear(16, 6, dtype=dtype), torch.randn(5, 16, dtype=dtype)

    assert torch.equal(layer(hidden), functional.linear(hidden, layer.weight, layer.bias))
    assert torch.equal(product(hidden, layer.weight), hidden @ layer.weight.t())


def test_without_gradients_none_are_kept(by_onednn):
    """In validation nothing waits for a backward pass."""
    with torch.no_grad():
        assert Linear(16, 6)(torch.randn(5, 16)).grad_fn is None
