"""A DataLoader with two workers feeds two steps of an optimizer."""

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.full((2,), float(index)), torch.rand(1)


if __name__ == "__main__":
    torch.manual_seed(1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    for inputs, drawn in DataLoader(Squares(), batch_size=4, num_workers=2):
        loss = (model(inputs) - drawn).square().mean()
        loss.backward()
        optimizer.step()
        print(inputs[:, 0].tolist(), round(loss.item(), 5))
