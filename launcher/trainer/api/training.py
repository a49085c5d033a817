"""`train`: what MindSpore's `Model.train` and `PipelineCell` are there for, under the layout that `tlaunch run` was asked for."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
from functools import partial
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from launcher.core import env
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
from launcher.trainer.own.train.configs import TransformerOpParallelConfig
from launcher.trainer.own.train.layers import Transformer
from launcher.trainer.own.train.network_settings import NetworkData, NetworkModel, NetworkSettings, NetworkTrainConfig
from launcher.trainer.own.train.optimizers import AdamWeightDecay, Optimizer, in_words
from launcher.trainer.own.train.samples import Samples
from launcher.trainer.parallel.place import choose_device, this_place
from launcher.trainer.parallel.world import Transport, open_world
from launcher.trainer.programs.log_lines import say
from launcher.trainer.programs.loop import run
from launcher.trainer.programs.own_network import NAME, OwnNetwork
from launcher.trainer.saved import model_of
from launcher.trainer.telemetry.metrics_writer import attempt_in
from launcher.trainer.training_files import Files

NO_CHECKPOINTS = CheckpointConfig()
ADAM = AdamWeightDecay()
_CHECKED = ("epochs", "steps", "batch_size", "seed", "validate_every", "early_stopping")  # as the bundled trainer's


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
    """Train a network on all ranks of a run; return its weights and buffers on rank 0, and None elsewhere. All ranks must call it.

    `network` is called with the items of a batch, each of which has its rows as the first dim, and returns the loss, one number: the
    mean over its rows, or a `CrossEntropyLoss`. A copy of it is trained, in training mode, that begins with rank 0's weights and
    buffers; the one that is given is not changed: `network.load_state_dict(weights)` does that. Where its code changes buffers,
    rank 0's are kept. Under pp > 1 it has one `Transformer`, and stages are made of its layers (`graphs.py`).

    Under dp > 1 or several micro batches the loss of some samples is compared with the mean over their parts, before the first step;
    with `check_gradients` the gradient, too. A network for which they differ is refused, unless `parts_may_differ`: then the mean over
    the parts is trained, and the log says so.

    `samples` are taken in another order in each epoch, by `seed`, unless `shuffle` is false; `batch_size` of them, which dp times the
    micro batches divide, make the global batch of a step, and what is left of an epoch that fills none is not used in it. They are the
    same on all ranks, and whenever they are asked for. The training ends after `steps` optimizer steps if they are given, else after
    the `epochs`. `optimizer` is one of `AdamWeightDecay`, `AdamW` and `Momentum`, whose rate may be a function of the step.

    The layout is the run's. `parallel_config`, or that of the network's Transformer, says the rest, and must have the run's
    numbers. Without either all is `TransformerOpParallelConfig.of_run()`. `schedule` is "1f1b" or "gpipe".
    `gradient_accumulation_shard`, with `optimizer_shard`, has a rank keep the gradients of its share of the weights only.
    `device` "auto" is the accelerator where every rank of a server gets one, else the CPU; `transport` says what carries collectives on
    one host: "backend" or "shared_memory", the latter by itself on the CPU.

    The mean loss of `validation`, of the samples that fill batches, is told every `validate_every` steps and at the end; after
    `early_stopping` validations in a row without a lower one the training ends. `clip_norm` is the largest norm of the gradient, 0 none.
    Checkpoints (`checkpoint`) and the model are kept in `output`/checkpoints and `output`/model, by default in the directory of the run;
    a second training of a run needs an `output` of its own. `resume` is a checkpoint of any layout, a directory of
    them, or a run's, by its name where that is beside this one's; "latest" is the newest run but this one that has some.
    A run that is started again goes on from its own checkpoints; a training that had ended there returns what was trained.

    Raises:
        UsageError: the network, the samples or an argument cannot be served.
        RefusedLayoutError: the layout does not fit the network, the batch, or the configuration.
        TlaunchError: a checkpoint cannot be used, or a gradient is not finite. After an error in a training the connections to the other
            ranks are not closed, and this process cannot train again.
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
    parallel = _parallel_settings(network, config, schedule, accumulates_shards=gradient_accumulation_shard)
    place = this_place(micro_batches=config.micro_batch_num)
    _check_same(config, place.layout)
    check_layout(place.layout, batch_size)
    settings = NetworkSettings(
        model=NetworkModel(class_name(network), type(optimizer).__name__),
        data=NetworkData(shuffle),
        train=train_config,
        parallel=dataclasses.replace(parallel, transport=transport),
        checkpoint=checkpoint,
    )
    files, made = _files(output, resume), list[OwnNetwork]()
    keep_freed_memory()
    with open_world(place, choose_device(place, device, os.environ), transport) as world:
        trained = dict[str, Tensor]()
        if world.from_rank_0(partial(_trained_before, files, settings, trained)):
            return trained if world.is_first else None

        def make() -> OwnNetwork:
            own = copy.deepcopy(network).train()
            checks = {"parts_may_differ": parts_may_differ, "check_gradients": check_gradients}
            made.append(OwnNetwork(own, samples, validation, optimizer, settings, world, **checks))
            return made[0]

        run(make, settings.checkpoint, world, files)
    return made[0].trained


def _trained_before(files: Files, settings: NetworkSettings, trained: dict[str, Tensor]) -> bytes:
    """Fill `trained` from the model of this training, if an attempt of the run before this one has ended it; return whether."""
    if files.output is None or attempt_in(os.environ) == 0:
        return b""
    found = model_of(files.output, NAME, settings)
    if found is None:
        return b""
    say(f"{files.output} was trained before the restart, and is returned")
    trained.update(found)
    return b"1"


def _is_real(number: object) -> bool:
    """Return whether a float holds this number. NumPy's and torch's numbers may be given, too."""
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
            hint="one of launcher.trainer.api: AdamW(...), AdamWeightDecay(...), Momentum(...)",
        )
    for name, value in (("samples", samples), ("validation", validation)):
        if value is not None and not (hasattr(value, "__len__") and hasattr(value, "__getitem__")):
            raise UsageError(
                f"{name} is a {type(value).__name__}, of which no sample can be asked for by its number",
                hint="a list, or a data set with __len__ and __getitem__",
            )
    fields = {name: (getattr(TrainConfig, name), getattr(config, name)) for name in _CHECKED}
    fields |= {"device": (TrainConfig.device, device), "transport": (TRANSPORT, transport)}
    of_checkpoint = dataclasses.fields(checkpoint)
    fields |= {f"checkpoint.{field.name}": (field, getattr(checkpoint, field.name)) for field in of_checkpoint}
    for name, (field, value) in fields.items():
        checked(name, value, field)
    for name, number in (("clip_norm", config.clip_norm), ("learning_rate", optimizer.learning_rate)):
        if not callable(number) and not _is_real(number):
            raise UsageError(f"{name} is not a finite number", hint="a number such as 1.0")
    if not config.clip_norm >= 0:
        raise UsageError(f"clip_norm = {config.clip_norm} is below 0")
    check_clip_norm("clip_norm", config.clip_norm)
    if config.early_stopping and not (config.validate_every and validation is not None):
        raise UsageError("early_stopping counts validations", hint="validation = ..., validate_every = N")
    if validation is not None and len(validation) < config.batch_size:
        raise UsageError(f"there are {len(validation)} samples for validation, and batch_size = {config.batch_size}")


def config_of(network: nn.Module, given: TransformerOpParallelConfig | None) -> TransformerOpParallelConfig:
    """Return the configuration that is given, else that of the network's Transformers, else the run's.

    Raises:
        UsageError: modules of the network have others.
    """
    found = given
    for path, module in network.named_modules():
        config = getattr(module, "parallel_config", None)
        if not isinstance(config, TransformerOpParallelConfig):
            continue
        found = found or config
        if config != found:
            raise UsageError(
                f"{path} has another parallel_config than the rest: {config} (here {found})", hint="one for all"
            )
    return found or TransformerOpParallelConfig.of_run()


def _check_same(config: TransformerOpParallelConfig, layout: Layout) -> None:
    if config.layout == layout:
        return
    dp, mp, pp, micro = config.data_parallel, config.model_parallel, config.pipeline_stage, config.micro_batch_num
    raise RefusedLayoutError(
        f"parallel_config has dp={dp} mp={mp} pp={pp} micro_batches={micro}, and the run {layout} micro_batches={layout.micro_batches}",
        hint=f"tlaunch run --dp {dp} --mp {mp} --pp {pp} --micro-batches {micro}, or TransformerOpParallelConfig.of_run()",
    )


def _parallel_settings(
    network: nn.Module, config: TransformerOpParallelConfig, schedule: str, *, accumulates_shards: bool
) -> ParallelConfig:
    """Return what a configuration and the Transformer's `lambda_func` say, as settings of the bundled trainer."""
    if schedule not in {ONE_FORWARD_ONE_BACKWARD, GPIPE}:
        raise UsageError(f"schedule = {schedule!r}", hint=f"{ONE_FORWARD_ONE_BACKWARD} or {GPIPE}")
    if accumulates_shards and not config.optimizer_shard:
        raise UsageError(
            "gradient_accumulation_shard is asked for, but each rank updates all weights and needs all gradients",
            hint="optimizer_shard = True in the parallel_config",
        )
    settings = ParallelConfig(
        schedule=schedule,
        vocab_emb_dp=config.vocab_emb_dp,
        recompute=config.recomputes,
        optimizer_shard=config.optimizer_shard,
        gradient_accumulation_shard=accumulates_shards,
        gradient_groups=config.gradient_aggregation_group,
    )
    found = [module for module in network.modules() if isinstance(module, Transformer) and module.lambda_func]
    if not found:
        return settings
    transformer = found[0]  # of several, `DividedNetwork` refuses a lambda_func
    assert transformer.lambda_func is not None, "it has one"
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
    """Return where model and checkpoints are kept: where it is said, else in the directory of the run, else nowhere."""
    run_dir = Path(text) if (text := os.environ.get(env.TLAUNCH_RUN_DIR)) else None
    resumed = None if resume is None else _resumed(Path(resume), run_dir)
    if output is not None:
        return Files(output=Path(output) / "model", checkpoints=Path(output) / "checkpoints", resume=resumed)
    if run_dir is not None:
        own = RunDir(run_dir)
        return Files(output=own.model, checkpoints=own.checkpoints, resume=resumed)
    return Files(resume=resumed)


def _resumed(resume: Path, run_dir: Path | None) -> Path:
    """Return the directory that is meant: of a run's name the one beside this run's, and of `latest` the newest with checkpoints but this."""
    if run_dir is None:
        return resume
    found = resume if resume.exists() else run_dir.parent / resume
    if found.name != LATEST:
        return found
    saved = found.parent.glob("[!.]*/checkpoints/*/")
    others = {path.parents[1] for path in saved if path.parents[1].name != LATEST}
    return max(
        (path for path in others if path.resolve() != run_dir.resolve()), default=resume, key=lambda path: path.name
    )
