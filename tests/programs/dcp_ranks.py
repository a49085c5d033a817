"""Two ranks of torch train a small model with FSDP2, and save it with torch.distributed.checkpoint, or go on from such a checkpoint.

dcp_ranks.py save DIRECTORY    writes dcp/ and what it holds, whole.pt, there
dcp_ranks.py load DIRECTORY    loads again/, and ends with an error unless it holds what whole.pt does
"""

import functools
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import fork_ranks
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 3


def training():
    """A model and its optimizer after STEPS steps."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    # 7 rows are cut unevenly, and a single one leaves rank 1 with nothing.
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 1, bias=False))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        model(torch.ones(3, 5)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def whole(model, optimizer):
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, state = get_state_dict(model, optimizer, options=options)
    return [weights, state.get("state")]


def save(directory):
    model, optimizer = training()
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state, "step": torch.tensor(STEPS)}, checkpoint_id=directory / "dcp")
    found = whole(model, optimizer)
    if dist.get_rank() == 0:
        torch.save(found, directory / "whole.pt")
    dist.barrier()
    dist.destroy_process_group()


def load(directory):
    """What the model and the optimizer hold is overwritten with nothing, then loaded."""
    model, optimizer = training()
    weights, state = get_state_dict(model, optimizer)
    steps = torch.tensor(0)
    for tensors in (weights, *state["state"].values()):
        for tensor in tensors.values():
            tensor.detach().zero_()
    dcp.load(
        {"model": weights, "optimizer": {"state": state["state"]}, "step": steps}, checkpoint_id=directory / "again"
    )
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    found = whole(model, optimizer)
    if dist.get_rank() == 0:
        weights, state = torch.load(directory / "whole.pt", weights_only=True)
        assert steps == STEPS
        assert all(torch.equal(found[0][name], weights[name]) for name in weights)
        for name, expected in state.items():
            assert all(torch.equal(found[1][name][each], expected[each]) for each in expected)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    work = {"save": save, "load": load}[sys.argv[1]]
    fork_ranks("dcp", functools.partial(work, Path(sys.argv[2])), dp=2)
