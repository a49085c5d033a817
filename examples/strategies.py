"""A network of one's own, whose operators are cut over ranks: `tlaunch run --devices 8 -- python examples/strategies.py`.

One product is given a strategy: its input's rows are cut by 2 and its columns by 4. Those of all other operators follow by
propagation. Losses, gradients and weights are those of one process.
"""

import torch
from torch import nn

from launcher.trainer.shard.api import sharded
from launcher.trainer.shard.modules import MatMul


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 16) * 0.1)
        self.matmul, self.relu, self.head = MatMul(), nn.ReLU(), nn.Linear(16, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.relu(self.matmul(inputs, self.weight)))


def main() -> None:
    torch.manual_seed(1)
    inputs, label = torch.randn(16, 32), torch.randn(16, 4)
    net = Net()
    net.matmul.shard(((2, 4), (4, 1)))
    with sharded(net, (inputs, label), loss=nn.MSELoss(), mode="semi_auto_parallel") as network:
        print("\n".join(f"{name} {strategy}" for name, strategy in network.strategies.items()))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.1)
        for step in range(1, 21):
            optimizer.zero_grad()
            loss = network(inputs, label)
            loss.backward()
            network.sum_gradients()
            optimizer.step()
            print(f"step {step} loss {loss.item():.6f}")
        weights = network.whole_parameters()
    print(f"{sum(weight.numel() for weight in weights.values())} weights, {', '.join(weights)}")


if __name__ == "__main__":
    main()
