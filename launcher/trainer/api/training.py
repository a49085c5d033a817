"""`train`, which trains a custom network under the layout of `tlaunch run`, like MindSpore's `Model.train`."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal, cast

from torch import Tensor, nn

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.records import Layout
from launcher.core.run_dir import LATEST, RunDir
from launcher.mesh.schedules import GPIPE, ONE_FORWARD_ONE_BACKWARD
from launcher.recipes.settings import checked
from launcher.recipes.train import TRANSPORT, CheckpointConfig, ParallelConfig, TrainConfig, check_clip_norm
from launcher.recipes.transformer.layers import settings_by
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.own.divide import check_layout
from launcher.trainer.own.trace import class_name
from launcher.trainer.own.train.configs import (
    NetworkData,
    NetworkModel,
    NetworkSettings,
    NetworkTrainConfig,
    TransformerOpParallelConfig,
)
from launcher.trainer.own.train.layers import Transformer
from launcher.trainer.own.train.optimizers import AdamWeightDecay, Optimizer, in_words
from launcher.trainer.own.train.samples import Samples
from launcher.trainer.parallel.place import Place, choose_device, this_place
from launcher.trainer.parallel.world import Transport, World, open_world
from launcher.trainer.programs.loop import run
from launcher.trainer.programs.own_network import NAME, OwnNetwork
from launcher.trainer.programs.program import say
from launcher.trainer.saved import model_of
from launcher.trainer.telemetry.metrics_writer import attempt_in
from launcher.trainer.training_files import Files, own_run

NO_CHECKPOINTS = CheckpointConfig(enabled=False)
ADAM = AdamWeightDecay()
# Arguments that are checked like the bundled trainer's settings.
_CHECKED = ("epochs", "steps", "batch_size", "seed", "validate_every", "early_stopping")


def train(
    network: nn.Module,
    samples: Samples,
    *,
    batch_size: int,
    optimizer: Optimizer = ADAM,
    epochs: int = 1,
    steps: int = 0,
    parallel_config: TransformerOpParallelConfig | None = None,
    schedule: str = ONE_FORWARD_ONE_BACKWARD,
    gradient_accumulation_shard: bool = False,
    clip_norm: float = 0.0,
    shuffle: bool = True,
    seed: int = 1,
    validation: Samples | None = None,
    validate_every: int = 0,
    early_stopping: int = 0,
    checkpoint: CheckpointConfig = NO_CHECKPOINTS,
    resume: Path | str | None = None,
    output: Path | str | None = None,
    device: Literal["auto", "cpu"] = "auto",
    transport: Transport = "auto",
    parts_may_differ: bool = False,
    check_gradients: bool = False,
) -> dict[str, Tensor] | None:
    """Train a network on all ranks of a run. Return its weights and buffers on rank 0, and None on other ranks.

    All ranks must call it.

    `network` is called with the items of a batch, which have rows as their first dim. It must return the loss as one
    number: a mean over the rows, or a `CrossEntropyLoss`. A copy of the network is trained in training mode, with
    rank 0's initial weights and buffers. The original is not changed; to update it, call
    `network.load_state_dict(weights)`. If ranks' buffers differ, rank 0's are saved. With pp > 1 the network must
    have one `Transformer`, whose layers are divided into stages (`pipeline_parts.py`).

    With dp > 1 or several micro batches, the loss of some samples is compared with the mean over their parts before
    the first step. `check_gradients` compares gradients, too. If they differ, `train` raises an error; with
    `parts_may_differ` it logs a remark and trains on the mean over the parts.

    `samples` must be deterministic and the same on all ranks. They are shuffled in each epoch by `seed`, unless
    `shuffle` is False. The global batch of a step has `batch_size` samples, a multiple of dp * micro batches. Samples
    at the end of an epoch that do not fill a batch are skipped. The training ends after `steps` optimizer steps, or
    after `epochs` if `steps` is 0. `optimizer` is an `AdamWeightDecay`, `AdamW` or `Momentum`; its learning rate may
    be a function of the step.

    The run sets the layout. `parallel_config`, or the configuration of the network's Transformer, sets all other
    options and must have the same layout. The default is `TransformerOpParallelConfig.of_run()`. `schedule` is "1f1b"
    or "gpipe". `gradient_accumulation_shard` shards accumulated gradients, and needs `optimizer_shard`. With `device`
    "auto" training uses accelerators if every rank of a server has one, and the CPU otherwise. `transport` selects
    the collectives between ranks on a host, "backend" or "shared_memory"; "auto" uses shared memory on the CPU.

    The mean loss of `validation` is logged every `validate_every` steps and at the end; samples that do not fill a
    batch are skipped. Training stops after `early_stopping` consecutive validations without a lower loss. `clip_norm`
    limits the norm of the gradient; 0 turns clipping off. Checkpoints and the model are saved to `output`/checkpoints
    and `output`/model, by default in the run directory. A second training in the same run needs its own `output`.
    `resume` is a checkpoint of any layout, a directory of checkpoints, a run directory, or the name of a run in the
    same directory as this one. "latest" is the newest other run with checkpoints. A restarted run resumes from its
    own checkpoints, or returns the trained model if training had finished.

    Raises:
        UsageError: the network, the samples or an argument are not supported.
        RefusedLayoutError: the layout does not fit the network, the batch, or the configuration.
        TlaunchError: a checkpoint cannot be used, or a gradient is not finite. After an error during training the
            connections to other ranks are not closed, and this process cannot train again.
    """
    config = config_of(network, parallel_config)
    train_config = NetworkTrainConfig(
        epochs=epochs,
        steps=steps,
        batch_size=batch_size,
        optimizer=in_words(optimizer),
        clip_norm=clip_norm,
        seed=seed,
        validate_every=validate_every,
        early_stopping=early_stopping,
    )
    _check_arguments(train_config, checkpoint, samples, validation, optimizer, device=device, transport=transport)
    parallel = _parallel_settings(network, config, schedule, transport, accumulates_shards=gradient_accumulation_shard)
    place = this_place(micro_batches=config.micro_batch_num)
    _check_same(config, place.layout)
    check_layout(place.layout, batch_size)
    model = NetworkModel(class_name(network), type(optimizer).__name__)
    settings = NetworkSettings(model, NetworkData(shuffle), train_config, parallel, checkpoint)

    def make(world: World) -> OwnNetwork:
        checks = {"parts_may_differ": parts_may_differ, "check_gradients": check_gradients}
        return OwnNetwork(copy.deepcopy(network).train(), samples, validation, optimizer, settings, world, **checks)

    return _trained(make, settings, _files(output, resume), place, device)


def _trained(
    make: Callable[[World], OwnNetwork], settings: NetworkSettings, files: Files, place: Place, device: str
) -> dict[str, Tensor] | None:
    keep_freed_memory()
    transport = cast("Transport", settings.parallel.transport)
    with open_world(place, choose_device(place, device, os.environ), transport) as world:
        trained: list[dict[str, Tensor]] = []

        def trained_before() -> bytes:
            """Load the model if an earlier attempt of the run saved it. Return b"1" if a model was loaded, else b""."""
            if files.output is None or attempt_in(os.environ) == 0:
                return b""
            if (found := model_of(files.output, NAME, settings)) is not None:
                say(f"{files.output} was trained before the restart; returning it")
                trained.append(found)
            return b"1" if trained else b""

        if world.from_rank_0(trained_before):
            return trained[0] if world.is_first else None
        return run(partial(make, world), settings.checkpoint, world, files)


def _is_real(number: object) -> bool:
    """Return True if `number` is a finite number, including NumPy and torch scalars."""
    try:
        return not isinstance(number, str | bytes) and math.isfinite(float(number))  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _check_arguments(
    config: NetworkTrainConfig,
    checkpoint: CheckpointConfig,
    samples: Samples,
    validation: Samples | None,
    optimizer: Optimizer,
    *,
    device: str,
    transport: str,
) -> None:
    if not callable(getattr(optimizer, "rule", None)):
        raise UsageError(
            f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__qualname__}",
            hint="use an optimizer of launcher.trainer.api: AdamW(...), AdamWeightDecay(...) or Momentum(...)",
        )
    for name, value in (("samples", samples), ("validation", validation)):
        if value is not None and not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            raise UsageError(
                f"{name} is a {type(value).__name__}, which is not a sequence of samples",
                hint="pass a list, or a data set with __len__ and __getitem__",
            )
    fields = {name: (getattr(TrainConfig, name), getattr(config, name)) for name in _CHECKED}
    fields |= {"device": (TrainConfig.device, device), "transport": (TRANSPORT, transport)}
    of_checkpoint = dataclasses.fields(checkpoint)
    fields |= {f"checkpoint.{field.name}": (field, getattr(checkpoint, field.name)) for field in of_checkpoint}
    for name, (field, value) in fields.items():
        checked(name, value, field)
    for name, number in (("clip_norm", config.clip_norm), ("learning_rate", optimizer.learning_rate)):
        if not callable(number) and not _is_real(number):
            raise UsageError(f"{name} is not a finite number", hint="use a number such as 1.0")
    if not config.clip_norm >= 0:
        told = f"clip_norm = {config.clip_norm} is below 0"
        raise UsageError(told, hint="use a positive number, or 0 to turn off clipping")
    check_clip_norm("clip_norm", config.clip_norm)
    if config.early_stopping and not (config.validate_every and validation is not None):
        raise UsageError(
            "early_stopping needs validation, but validation is off",
            hint="pass samples as `validation`, and set validate_every = N",
        )
    if validation is not None and len(validation) < config.batch_size:
        raise UsageError(
            f"validation needs at least batch_size = {config.batch_size} samples, but there are {len(validation)}",
            hint="reduce batch_size, or add validation samples",
        )


def config_of(network: nn.Module, given: TransformerOpParallelConfig | None) -> TransformerOpParallelConfig:
    """Return `given`. If it is None, use the configuration of the network's modules, or else of the run.

    Raises:
        UsageError: modules of the network have different configurations.
    """
    found = given
    for path, module in network.named_modules():
        config = getattr(module, "parallel_config", None)
        if not isinstance(config, TransformerOpParallelConfig):
            continue
        found = found or config
        if config != found:
            raise UsageError(
                f"{path} has a different parallel_config than other modules: {config} instead of {found}",
                hint="use the same parallel_config for all modules",
            )
    return found or TransformerOpParallelConfig.of_run()


def _check_same(config: TransformerOpParallelConfig, layout: Layout) -> None:
    if config.layout == layout:
        return
    dp, mp, pp, micro = config.data_parallel, config.model_parallel, config.pipeline_stage, config.micro_batch_num
    raise RefusedLayoutError(
        f"parallel_config has dp={dp} mp={mp} pp={pp} micro_batches={micro}, but the run has {layout} "
        f"micro_batches={layout.micro_batches}",
        hint=f"use `tlaunch run --dp {dp} --mp {mp} --pp {pp} --micro-batches {micro}`, or "
        "TransformerOpParallelConfig.of_run()",
    )


def _parallel_settings(
    network: nn.Module, config: TransformerOpParallelConfig, schedule: str, transport: str, *, accumulates_shards: bool
) -> ParallelConfig:
    """Convert a parallel configuration and the Transformer's `lambda_func` to the trainer's settings."""
    if schedule not in {ONE_FORWARD_ONE_BACKWARD, GPIPE}:
        raise UsageError(f"unknown schedule {schedule!r}", hint=f"use {ONE_FORWARD_ONE_BACKWARD} or {GPIPE}")
    if accumulates_shards and not config.optimizer_shard:
        raise UsageError(
            "gradient_accumulation_shard requires optimizer_shard: without optimizer sharding, every rank needs all gradients",
            hint="set optimizer_shard = True in the parallel_config",
        )
    settings = ParallelConfig(
        schedule=schedule,
        vocab_emb_dp=config.vocab_emb_dp,
        recompute=config.recomputes,
        optimizer_shard=config.optimizer_shard,
        gradient_accumulation_shard=accumulates_shards,
        gradient_groups=config.gradient_aggregation_group,
        transport=transport,
    )
    found = [module for module in network.modules() if isinstance(module, Transformer) and module.lambda_func]
    if not found:
        return settings
    transformer = found[0]  # `DividedNetwork` refuses a lambda_func with several Transformers
    assert transformer.lambda_func is not None, "`found` has only Transformers with a lambda_func"
    by_layer = settings_by(
        transformer.lambda_func, transformer.encoder_layers, transformer.decoder_layers, config, config.pipeline_stage
    )
    return dataclasses.replace(
        settings,
        stages=by_layer.stages,
        recompute=settings.recompute and not by_layer.recompute_layers,
        recompute_layers=by_layer.recompute_layers,
        gradient_groups=by_layer.gradient_groups or settings.gradient_groups,
    )


def _files(output: Path | str | None, resume: Path | str | None) -> Files:
    """Return the paths of the model and the checkpoints in `output`. If `output` is None, use the run directory."""
    run_dir = own_run()
    own = run_dir if output is None else RunDir(Path(output))  # with the names that they have in a run directory
    resumed = None if resume is None else _resumed(Path(resume), run_dir)
    if own is None:
        return Files(resume=resumed)
    return Files(output=own.model, checkpoints=own.checkpoints, resume=resumed)


def _resumed(resume: Path, run_dir: RunDir | None) -> Path:
    """Return the path to resume from. `resume` is a path, a run's name, or `latest` for the newest other run."""
    if run_dir is None:
        return resume
    found = resume if resume.exists() else run_dir.root.parent / resume
    if found.name != LATEST:
        return found
    saved = found.parent.glob("[!.]*/checkpoints/*/")
    others = {path.parents[1] for path in saved if path.parents[1].name != LATEST}
    own = run_dir.root.resolve()
    return max((path for path in others if path.resolve() != own), default=resume, key=lambda path: path.name)
