"""Simulate steps on an NPU that does not exist, and print numbers for tests/trainer/test_simulate.py as JSON.

This is a program of its own because a device, once made, stays in the process.
"""

import json
from contextlib import ExitStack, suppress

import torch
from rank_memory import rank_bytes

from launcher.core.records import Layout
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.cost import training_flops
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.parallel.pipeline import Links
from launcher.trainer.parallel.place import place_from_environment
from launcher.trainer.parallel.world import World
from launcher.trainer.session import Session
from launcher.trainer.simulate.devices import SimulatedDevice
from launcher.trainer.simulate.memory import MemoryRecord
from launcher.trainer.simulate.observed_step import clear_caches, observed_step
from launcher.trainer.simulate.observer import HostReadError, StepObserver
from launcher.trainer.simulate.repeated import simulated_rank
from launcher.trainer.simulate.simulation import longest_batch, simulate
from launcher.trainer.simulate.torch_internals import fake_tensors
from launcher.trainer.telemetry.recording import Recorder
from launcher.trainer.telemetry.watch import watching

SIZES = ["model.vocabulary_size=501", "model.d_model=64", "model.heads=4", "model.feed_forward_dim=128"]
STATES = ("weights", "gradients", "moments")
NPU = SimulatedDevice.of("npu")


def settings_of(*more):
    return load_settings(TransformerSettings, None, [*SIZES, *more])


def states():
    """By switch: simulated and computed bytes of weights, gradients and moments, on every distinct rank."""
    found = {}
    for switch in ("train.precision=bfloat16", "parallel.optimizer_shard=false"):
        settings, layout = settings_of(switch), Layout(2, 2, 2, 1)
        for each in simulate(settings, layout, NPU).ranks:
            formula = rank_bytes(settings, layout, each.stage, "scattering")
            computed = (formula.weights, formula.gradients, formula.state)
            found[f"{switch} {each.rank}"] = [[getattr(each.peak, kind) for kind in STATES], computed]
    return found


def flops():
    """Of all stages, simulated and computed."""
    settings, layout = settings_of("train.batch_size=8"), Layout(1, 1, 2, 2)
    ranks = simulate(settings, layout, NPU).ranks
    lengths = [settings.data.source_length] * 8
    return sum(each.forward_flops + each.backward_flops for each in ranks), training_flops(
        settings.model, lengths, lengths
    )


def repeated():
    """Whether fewer micro batches say what all of them say, by stage."""
    settings, layout = settings_of("train.batch_size=16"), Layout(2, 2, 2, 8)
    pairs = longest_batch(settings)
    return [
        simulated_rank(settings, layout, rank, NPU, pairs) == observed_step(settings, layout, rank, NPU, pairs).summary
        for rank in (0, 7)
    ]


def distinct():
    """The groups of ranks of uneven layouts."""
    settings = settings_of("train.batch_size=6")
    return [each.same for each in simulate(settings, Layout(4, 2, 1, 1), NPU).ranks]


def refusals():
    """What a step must not do, each with the error that it meets."""
    found = []
    with fake_tensors(), StepObserver(NPU.device):
        on_device = torch.zeros(2, device=NPU.device)
        for action in (lambda: float(on_device[0]), lambda: on_device + torch.zeros(2), lambda: bool(on_device[0])):
            with suppress(HostReadError, RuntimeError):
                action()
                found.append("nothing")
                continue
            found.append("refused")
    return found


def on_cpu():
    """By switch: the peak of a simulated step on a CPU, and of the same step on tensors with values."""
    found = {}
    for switch in (
        "parallel.schedule=1f1b",
        "parallel.recompute=true",
        "parallel.schedule=gpipe",
        "train.precision=bfloat16",
    ):
        settings, layout = settings_of("train.batch_size=16", switch), Layout(1, 1, 1, 4)
        pairs, cpu = longest_batch(settings), SimulatedDevice.of("cpu")
        simulated = observed_step(settings, layout, 0, cpu, pairs).summary.peak.total
        clear_caches()
        observer = StepObserver(cpu.device)
        place = place_from_environment({}, micro_batches=4)
        with observer, ExitStack() as undo:
            session = Session(settings, World(place, cpu.device, dp=ALONE, mp=ALONE, pp=ALONE, links=Links()))
            record = MemoryRecord(session, observer)
            record.watch(undo)
            with watching(session.model, Recorder(0)):
                session.train_step(pairs, 1e-3, step=1)
            found[switch] = simulated, record.peak().total
    return found


print(
    json.dumps(
        {
            "on_cpu": on_cpu(),
            "states": states(),
            "flops": flops(),
            "repeated": repeated(),
            "distinct": distinct(),
            "refusals": refusals(),
        }
    )
)
