"""What torch does in processes and threads of its own: workers that load data, a compiled function, a large product.

A DataLoader with two workers feeds two steps of an optimizer; the gradient goes through a compiled function; and two
threads compute a product large enough for both (last: no process may be forked once they are there).
"""

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.rand(1)


def load():
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, drawn in DataLoader(Squares(), batch_size=4, num_workers=2):
        loss = (model(inputs) - drawn).square().mean()
        loss.backward()
        optimizer.step()
        print(inputs[:, 0].tolist(), round(loss.item(), 5))


@torch.compile(backend="aot_eager")
def wave(values):
    return (values.sin() * 2 + values.cos()).sum()


def compute():
    values = torch.arange(6.0, requires_grad=True)
    wave(values).backward()
    print([round(number, 4) for number in values.grad.tolist()])
    torch.set_num_threads(2)
    large = torch.ones(600, 600)
    print((large @ large).sum().item())


if __name__ == "__main__":
    load()
    compute()
