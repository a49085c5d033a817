"""Linear layers by oneDNN: torch's own numbers, whatever the shapes and strides."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from launcher.trainer.model import linear as module
from launcher.trainer.model.linear import BLOCK_ROWS, SMALLEST_BLOCK, Linear, linear, product, row_blocks


@pytest.fixture(autouse=True)
def no_own_rows(monkeypatch):
    monkeypatch.setattr(module, "_own_rows", frozenset())


@pytest.fixture
def onednn(monkeypatch):
    """Products by oneDNN, also on a processor on which it is not faster."""
    if module._OPERATION is None:
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(module, "_ONEDNN", module._OPERATION)


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch's own"])
def by_onednn(request, monkeypatch):
    if request.param:
        request.getfixturevalue("onednn")
    else:
        monkeypatch.setattr(module, "_ONEDNN", None)
    return request.param


@pytest.mark.parametrize(("capability", "processor", "is_faster"), [
    ("AVX512", "vendor_id\t: AuthenticAMD", True),
    ("AVX512", "vendor_id\t: GenuineIntel", False),
    ("AVX2", "vendor_id\t: AuthenticAMD", False),
    ("AVX512", None, False),
])  # fmt: skip
def test_onednn_is_for_avx512_of_other_makers(capability, processor, is_faster, monkeypatch):
    """And for none of which nothing is known."""

    def read_text(path):
        if processor is None:
            raise FileNotFoundError(path)
        return processor

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(module.Path, "read_text", read_text)
    assert module._is_faster() == is_faster


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(3, 100, 16), (2, 1300, 16), (1, 1, 16), (512, 16), (5, 16), (0, 16)], ids=str)
def test_values_and_gradients_are_those_of_float64(shape, has_bias, by_onednn, monkeypatch):
    """Of one block of rows or several; also where what comes back is no contiguous tensor, as from attention's heads."""
    monkeypatch.setattr(module, "MIN_WEIGHT_ELEMENTS", 1)
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
    used = "_LinearBackward" in {type(output.grad_fn).__name__, type(output.grad_fn.next_functions[0][0]).__name__}
    assert used == (by_onednn and hidden[..., 0].numel() >= SMALLEST_BLOCK)
    pairs = [(output, expected), *((mine.grad, theirs.grad) for mine, theirs in zip(ours, exact, strict=True))]
    for mine, theirs in pairs:
        assert (mine.double() - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_multiplied_by_torch(dtype):
    layer, hidden = Linear(16, 6, dtype=dtype), torch.randn(128, 16, dtype=dtype)
    assert torch.equal(layer(hidden), functional.linear(hidden, layer.weight, layer.bias))
    assert torch.equal(product(hidden, layer.weight, rows=128), hidden @ layer.weight.t())


@given(rows=st.integers(0, 5000), largest=st.sampled_from([128, 300, 512, 5000]), smallest=st.sampled_from([32, 128]))
def test_blocks_are_of_few_sizes(rows, largest, smallest):
    """They follow each other, and what is left is less than the smallest of them."""
    blocks = list(row_blocks(rows, largest=largest, smallest=smallest))
    sizes = [block.stop - block.start for block in blocks]
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(rows))
    assert max(sizes, default=0) <= largest
    assert all(size in BLOCK_ROWS for size in sizes[:-1])
    assert rows < smallest or sizes[0] in BLOCK_ROWS
    assert not sizes or sizes[-1] in BLOCK_ROWS or sizes[-1] < smallest


@pytest.mark.usefixtures("onednn")
def test_batches_of_any_size_have_kernels_of_few_shapes(monkeypatch):
    """Since each kernel that oneDNN has made is kept."""
    shapes, multiply = set(), module._ONEDNN
    monkeypatch.setattr(
        module,
        "_ONEDNN",
        lambda left, right, *rest: shapes.add((left.shape, right.shape)) or multiply(left, right, *rest),
    )
    layer = Linear(128, 256)
    for rows in range(1, 4000, 97):
        layer(torch.randn(rows, 128, requires_grad=True)).sum().backward()
    assert len(shapes) <= 3 * len(BLOCK_ROWS)


def test_eight_numbers_of_rows_have_kernels_of_their_own():
    """The largest. All others are taken in blocks."""
    module.set_own_rows([0, 5, *range(301, 401)])
    assert list(row_blocks(400)) == [slice(0, 400)]
    assert [block.stop for block in row_blocks(400, largest=399)] == [256, 384, 400]
    assert [len(list(row_blocks(rows))) for rows in (392, 393)] == [3, 1]


@pytest.mark.usefixtures("onednn")
def test_products_of_no_rows_have_no_kernel_of_their_own():
    """For oneDNN makes none of their gradients."""
    module.set_own_rows([0])
    output = Linear(16, 6)(torch.empty(0, 16))
    output.sum().backward()
    assert output.shape == (0, 6)


def test_products_by_kernels_of_their_own_are_the_same(by_onednn):
    layer, hidden = Linear(16, 6), torch.randn(5, 16, requires_grad=True)
    expected = functional.linear(hidden, layer.weight, layer.bias)
    module.set_own_rows([5])
    output = layer(hidden)
    assert (type(output.grad_fn).__name__ == "_LinearBackward") == by_onednn
    torch.testing.assert_close(output, expected)


@pytest.mark.usefixtures("by_onednn")
def test_a_frozen_weight_gets_no_gradient():
    layer, hidden = Linear(128, 128), torch.randn(128, 128, requires_grad=True)
    layer.weight.requires_grad_(False)
    layer(hidden).sum().backward()
    assert layer.weight.grad is None
    assert hidden.grad is not None
    layer.weight.requires_grad_(True)
    layer(hidden.detach()).sum().backward()
    assert layer.weight.grad is not None


def test_without_gradients_none_are_kept(by_onednn):
    with torch.no_grad():
        assert Linear(128, 128)(torch.randn(128, 128)).grad_fn is None
