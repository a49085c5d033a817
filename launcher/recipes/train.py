"""Settings shared by the bundled programs: training, checkpoints, and parallelism."""

from __future__ import annotations

from launcher.checkpoint.file_layout import OWNED, WAYS
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.mesh.schedules import KINDS
from launcher.recipes.settings import setting

LEAST_NORM = 1e-12  # smallest norm to which gradients may be clipped


class TrainConfig:
    """The settings of the section `train` that all bundled programs share.

    A program's `train` section is a frozen subclass. It repeats each of these fields, with the declaration in this
    class or with its own default and help: `epochs: int = TrainConfig.epochs`. The order in the subclass is the order
    in listings and records.
    """

    epochs: int = setting(1, "passes over the training examples", minimum=1)
    steps: int = setting(0, "optimizer steps to train for; 0 means until the last epoch ends", minimum=0)
    batch_size: int = setting(32, "examples per optimizer step, over all ranks", minimum=1, maximum=1_000_000_000)
    micro_batches: int = setting(
        1, "parts of a batch that each data-parallel rank computes in sequence", minimum=1, maximum=1_000_000
    )
    learning_rate: float = setting(1e-2, "step size of the optimizer", minimum=0)
    seed: int = setting(1, "random seed for initial weights and sample order", minimum=0)
    precision: str = setting(
        "float32",
        "number format of weights and arithmetic; with bfloat16 the optimizer keeps float32 weights",
        choices=("float32", "float64", "bfloat16"),
    )
    device: str = setting("auto", "auto: accelerators if all local ranks have one, else CPU", choices=("auto", "cpu"))
    validate_every: int = setting(0, "steps between validations; 0 means only at the end", minimum=0)
    early_stopping: int = setting(
        0, "end the training after this many validations in a row without improvement; 0 means never", minimum=0
    )
    profile_steps: int = setting(
        0, "steps to trace with torch's profiler on every rank, after the first three", minimum=0, maximum=1_000_000
    )


def why_ended(train: TrainConfig) -> str:
    """Describe which setting ended a training, and what to set to train on."""
    if train.steps:
        other = f"train.steps=0 to train for train.epochs={train.epochs}"
        return f"train.steps={train.steps} ends the training; set a larger number, or {other}"
    return f"train.epochs={train.epochs} ends the training; set a larger number"


def check_early_stopping(train: TrainConfig) -> None:
    """Raise UsageError if early stopping is enabled, but there are no validations during training."""
    if train.early_stopping and not train.validate_every:
        raise UsageError(
            f"train.early_stopping = {train.early_stopping} needs validation during training, "
            "but train.validate_every = 0 runs validation only at the end",
            hint="use `--set train.validate_every=N`, or `--set train.early_stopping=0`",
        )


def check_divisible(batch_size: int, parts: int, divisor: str) -> None:
    """Raise RefusedLayoutError if a batch is not divisible by `parts`. `divisor` describes `parts` in the message."""
    if batch_size % parts:
        raise RefusedLayoutError(
            f"train.batch_size = {batch_size} is not divisible by {divisor}",
            hint=f"use `--set train.batch_size={batch_size - batch_size % parts or parts}`",
        )


def check_clip_norm(name: str, norm: float) -> None:
    """Raise UsageError if clipping to `norm` makes gradients too small to change weights. 0 disables clipping."""
    if 0 < norm < LEAST_NORM:
        raise UsageError(
            f"{name} = {norm:g} reduces every gradient to nothing",
            hint=f"use 0 to turn off gradient clipping, or a norm of at least {LEAST_NORM:g}",
        )


@frozen
class CheckpointConfig:
    """The checkpoint settings: when to save, which checkpoints to keep, and which files to write.

    enabled: whether to save at intervals, at the last step and at SIGTERM
    every_steps, every_minutes: interval (MindSpore: save_checkpoint_steps, save_checkpoint_seconds); 0 means none
    keep, keep_best: number of latest checkpoints to keep (MindSpore: keep_checkpoint_max), and whether to keep the one
        with the best validation
    files: "owned" (each rank's optimizer state), "slices", "one_copy" or "integrated" (MindSpore: integrated_save)
    on_failure: "continue" or "stop" if a checkpoint cannot be written
    """

    enabled: bool = setting(True, "save checkpoints: at intervals, at the last step, and if the run is stopped")
    every_steps: int = setting(0, "steps between checkpoints, in addition to every_minutes; 0 means none", minimum=0)
    every_minutes: float = setting(10.0, "minutes between checkpoints; 0 means none", minimum=0)
    keep: int = setting(4, "number of latest checkpoints to keep", minimum=1, maximum=1_000_000)
    keep_best: bool = setting(False, "write a checkpoint at every validation, and also keep the best one")
    files: str = setting(
        OWNED,
        "owned: each rank writes its optimizer's part; slices: its model slice; one_copy: each slice once; integrated: a single file",
        choices=WAYS,
    )
    on_failure: str = setting(
        "continue", "whether to continue or stop if a checkpoint cannot be written", choices=("continue", "stop")
    )


GRADIENT_GROUPS = setting(
    1,
    "groups of gradients, each summed over ranks as soon as backward has computed it",
    minimum=1,
    maximum=1_000_000,
    alias="gradient_aggregation_group",  # MindSpore's name
)
TRANSPORT = setting(
    "auto", "auto: shared memory if all ranks are on the CPU of one host", choices=("auto", "backend", "shared_memory")
)


@frozen
class ParallelConfig:
    stages: tuple[int, ...] = setting(
        (), "number of layers of each pipeline stage, encoder layers first; empty: balanced by cost", minimum=0
    )
    schedule: str = setting("1f1b", "order of forward and backward passes in a pipeline", choices=KINDS)
    interleave: int = setting(
        1, "chunks of layers per pipeline stage; more than one if schedule is interleaved", minimum=1, maximum=1000
    )
    vocab_emb_dp: bool = setting(
        False, "replicate embedding tables on all model-parallel ranks instead of splitting their rows"
    )
    recompute: bool = setting(False, "recompute the activations of each layer in backward instead of keeping them")
    recompute_layers: tuple[int, ...] = setting(
        (), "numbers of the layers to recompute, instead of all; from 0, decoder layers after encoder layers", minimum=0
    )
    optimizer_shard: bool = setting(True, "shard the optimizer state over data-parallel ranks")
    gradient_accumulation_shard: bool = setting(
        False, "sum gradients after each micro batch, so that each rank keeps only the gradients of its shard"
    )
    gradient_groups: int = GRADIENT_GROUPS
    transport: str = TRANSPORT

    def chunks(self, pp: int) -> int:
        """Return the number of layer chunks per pipeline stage, which is 1 without pipeline parallelism."""
        return self.interleave if pp > 1 else 1
