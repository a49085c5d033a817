"""Hold each kind of parallelism against torch's own. Exit 0 when they agree.

In float64, on two ranks forked from this process. torch's parts are slower or fail on ragged batches, so the trainer
has its own; here, on a batch that both can take, they must give the same numbers.
"""

import copy
import dataclasses
import random

import torch
from ranks import fork_ranks, own_world
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional
from torch_parts import TorchStage, tensor_parallel_styles

from launcher.recipes.load import load_settings
from launcher.recipes.transformer.cost import pipeline_stages
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import own_micro_batches, token_count
from launcher.trainer.data.tokens import Example
from launcher.trainer.model.transformer import END, PAD
from launcher.trainer.parallel.collectives import ALONE
from launcher.trainer.plan import apply_plan
from launcher.trainer.session import Session, meta_model

CPU = torch.device("cpu")
SETTINGS = [
    "model.vocabulary_size=40", "model.d_model=16", "model.heads=4", "model.feed_forward_dim=32",
    "model.encoder_layers=1", "model.decoder_layers=1", "model.dropout=0", "data.source_length=8", "data.target_length=8",
    "train.batch_size=8", "train.clip_norm=0", "train.weight_decay=0.1", "train.precision=float64", "train.device=cpu",
]  # fmt: skip
RECIPE = load_settings(TransformerSettings, None, SETTINGS)
MICRO_BATCHES = 4
STEPS = 3
LEARNING_RATE = 1e-2


def examples(step=0):
    """Pairs of one length, since torch's pipeline fixes shapes at its first step."""
    numbers = random.Random(step)
    return [
        Example([*numbers.choices(range(4, 40), k=7), END], [*numbers.choices(range(4, 40), k=7), END])
        for _ in range(RECIPE.train.batch_size)
    ]


def single_device_model():
    model = meta_model(RECIPE)
    [whole] = pipeline_stages(RECIPE, 1)
    apply_plan(model, [whole], ALONE, seed=RECIPE.train.seed, device=CPU, dtype=torch.float64)
    return model


def whole_batch(world):
    [batch] = own_micro_batches(
        examples(), dataclasses.replace(world.place.layout, micro_batches=1), world.place.coordinate, CPU
    )
    return batch


def mean_loss(logits, labels, smoothing=0.1):
    return functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=smoothing, reduction="sum"
    ) / token_count(examples())


def full(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def check(name, ours, theirs):
    # Key biases have a gradient of zero but for rounding.
    if "key.bias" not in name:
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=lambda text: f"{name}: {text}")


def tensor():
    """Model parallelism against DTensor's Colwise and Rowwise styles."""
    with own_world() as world:
        session = Session(RECIPE, world)
        loss = session.accumulate_gradients(examples(), step=1)
        model = single_device_model()
        parallelize_module(model, init_device_mesh("cpu", (2,)), tensor_parallel_styles(model))
        batch = whole_batch(world)
        logits = model.project(model(batch)[1])
        mean_loss(logits, batch.labels_BT).backward()
        theirs = mean_loss(logits, batch.labels_BT, smoothing=0.0)
        check("loss", torch.tensor(loss, dtype=torch.float64), theirs.detach())
        reference = dict(model.named_parameters())
        for name, parameter in session.model.named_parameters():
            check(name, parameter.grad, session.placements[name].part_of(full(reference[name].grad)))


def pipeline():
    """The 1F1B engine against PipelineStage and Schedule1F1B."""
    with own_world() as world:
        session = Session(RECIPE, world)
        theirs = copy.deepcopy(session.model)
        theirs.zero_grad(set_to_none=True)
        loss = session.accumulate_gradients(examples(), step=1)
        stage = PipelineStage(TorchStage(theirs), world.pp.index, world.pp.size, CPU)
        losses = []

        def noted_loss(logits, labels):
            losses.append(mean_loss(logits, labels, smoothing=0.0).detach())
            return mean_loss(logits, labels)

        schedule = Schedule1F1B(stage, MICRO_BATCHES, loss_fn=noted_loss, scale_grads=False)
        batch = whole_batch(world)
        ids = {"source_ids": batch.source_BS, "target_ids": batch.target_BT}
        if session.own_stages[0].is_first:
            schedule.step(batch.source_BS, **ids)
        else:
            schedule.step(target=batch.labels_BT, **ids)
            check(
                "loss", torch.tensor(loss, dtype=torch.float64), torch.stack(losses[-MICRO_BATCHES:]).sum()
            )  # torch calls it once more before, to infer shapes
        reference = dict(theirs.named_parameters())
        for name, parameter in session.model.named_parameters():
            check(name, parameter.grad, reference[name].grad)


def data():
    """The sharded optimizer against FSDP2 and torch.optim.AdamW."""
    with own_world() as world:
        session = Session(RECIPE, world)
        model = single_device_model()
        whole = TorchStage(model)
        fully_shard(whole, mesh=init_device_mesh("cpu", (2,)))
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        train = RECIPE.train
        optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": train.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=LEARNING_RATE,
            betas=(train.beta1, train.beta2),
            eps=train.epsilon,
        )
        for step in range(STEPS):
            session.train_step(examples(step), LEARNING_RATE, step=step + 1)
            [batch] = own_micro_batches(examples(step), world.place.layout, world.place.coordinate, CPU)
            optimizer.zero_grad()
            # FSDP2 averages gradients over the ranks, and each rank sees its own half of the sum.
            logits = whole(source_ids=batch.source_BS, target_ids=batch.target_BT)
            (mean_loss(logits, batch.labels_BT) * world.dp.size).backward()
            optimizer.step()
        reference = dict(model.named_parameters())
        for name, parameter in session.model.named_parameters():
            check(name, parameter.detach(), full(reference[name]).detach())


if __name__ == "__main__":
    fork_ranks("tensor", tensor, mp=2)
    fork_ranks("pipeline", pipeline, pp=2, micro_batches=MICRO_BATCHES)
    fork_ranks("data", data, dp=2)
