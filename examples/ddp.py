"""Data-parallel training with torch: start it in the checkout with `tlaunch run --devices 2 -- python examples/ddp.py`.

Torch reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. The two lines at the end of a step are optional, and do nothing
without tlaunch: with the first, `--hang-timeout` notices a rank that stands still; `tlaunch report` shows the second.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tlaunch import beat, metric


def main() -> None:
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.accelerator.is_available():
        torch.accelerator.set_device_index(local_rank)
        device = torch.accelerator.current_accelerator()
    dist.init_process_group(device_id=device if device.type != "cpu" else None)  # nccl, hccl or gloo

    torch.manual_seed(dist.get_rank())  # each rank draws data of its own
    model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truth = torch.arange(8.0, device=device)
    for step in range(1, 101):
        inputs = torch.randn(32, 8, device=device)
        loss = (model(inputs).squeeze(1) - inputs @ truth).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f}")
        beat(step, last_step=100, loss=loss)
        metric(step, loss=loss)

    # A model that outlives its process group ends that while it holds Python's lock, which threads of gloo may wait for.
    del model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
