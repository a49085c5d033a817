"""A compiled function, and the gradient through it; two threads compute a product large enough for both."""

import torch


@torch.compile(backend="aot_eager")
def wave(values):
    return (values.sin() * 2 + values.cos()).sum()


values = torch.arange(6.0, requires_grad=True)
wave(values).backward()
print([round(number, 4) for number in values.grad.tolist()])
torch.set_num_threads(2)
large = torch.ones(600, 600)
print((large @ large).sum().item())
