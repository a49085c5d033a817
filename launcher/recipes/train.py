"""The settings that every bundled program has: how it trains, and how it is divided over ranks."""

from __future__ import annotations

from launcher.checkpoint.file_layout import OWNED, WAYS
from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.mesh.schedules import KINDS
from launcher.recipes.settings import setting

LEAST_NORM = 1e-12  # of a clipped gradient


class TrainConfig:
    """The settings of the section `train` that every bundled program has, declared once.

    A program's own section is a frozen class below this one that names all of these, each with what stands here or with
    its own default and words, among its own settings: `epochs: int = TrainConfig.epochs`. So a program decides in which
    order its settings are listed and recorded.
    """

    epochs: int = setting(1, "passes over the training examples", minimum=1)
    steps: int = setting(0, "optimizer steps after which to stop; 0 means after the epochs", minimum=0)
    batch_size: int = setting(32, "examples per optimizer step, over all ranks", minimum=1, maximum=1_000_000_000)
    micro_batches: int = setting(
        1, "parts of a batch that each data-parallel rank computes one after another", minimum=1, maximum=1_000_000
    )
    learning_rate: float = setting(1e-2, "the optimizer's step size", minimum=0)
    seed: int = setting(1, "of initial weights and sample order", minimum=0)
    precision: str = setting(
        "float32",
        "of weights and arithmetic; with bfloat16 the optimizer keeps the weights in float32",
        choices=("float32", "float64", "bfloat16"),
    )
    device: str = setting("auto", "auto: the accelerator where every local rank gets one", choices=("auto", "cpu"))
    validate_every: int = setting(0, "steps between validations; 0 means only at the end", minimum=0)
    early_stopping: int = setting(
        0, "validations in a row without a lower loss after which the training ends; 0 means never", minimum=0
    )
    profile_steps: int = setting(
        0, "steps that torch's profiler traces on every rank, after the first three", minimum=0, maximum=1_000_000
    )


def check_early_stopping(train: TrainConfig) -> None:
    """Refuse to count validations where there are none before the end.

    Raises:
        UsageError: there are none.
    """
    if train.early_stopping and not train.validate_every:
        raise UsageError(
            f"train.early_stopping = {train.early_stopping} counts validations, but train.validate_every = 0 has one, at the end",
            hint="--set train.validate_every=N, or --set train.early_stopping=0",
        )


def check_clip_norm(name: str, norm: float) -> None:
    """Refuse a largest norm of the gradient so small that no update changes a weight; 0 is no limit.

    Raises:
        UsageError: it is below `LEAST_NORM`.
    """
    if 0 < norm < LEAST_NORM:
        raise UsageError(
            f"{name} = {norm:g} leaves nothing of a gradient", hint=f"use {LEAST_NORM:g} or more, or 0 for no limit"
        )


@frozen
class CheckpointConfig:
    """The settings of checkpoints: when they are written, how many are kept, and as which files.

    every_steps, every_minutes: between two (MindSpore: save_checkpoint_steps, save_checkpoint_seconds); 0 means none
    keep, keep_best: the newest so many, and the one with the lowest validation loss (keep_checkpoint_max)
    files: "owned" (what each rank's optimizer owns), "slices", "one_copy" or "integrated" (integrated_save)
    on_failure: "continue" or "stop", if one cannot be written
    """

    every_steps: int = setting(0, "steps between checkpoints, of which the last step has one; 0 means none", minimum=0)
    every_minutes: float = setting(0.0, "minutes between checkpoints, beside every_steps; 0 means none", minimum=0)
    keep: int = setting(4, "checkpoints that are kept, the newest", minimum=1, maximum=1_000_000)
    keep_best: bool = setting(
        False, "every validation has a checkpoint, and the one with the lowest loss is kept besides the newest"
    )
    files: str = setting(
        OWNED,
        "of each rank what its optimizer owns, or its slice of the model; or one copy of each slice; or one file",
        choices=WAYS,
    )
    on_failure: str = setting(
        "continue", "what a training does whose checkpoint cannot be written", choices=("continue", "stop")
    )

    @property
    def is_on(self) -> bool:
        """True where checkpoints are written at all."""
        return bool(self.every_steps or self.every_minutes or self.keep_best)


GRADIENT_GROUPS = setting(
    1,
    "parts in which gradients are summed, each as soon as backward has filled it",
    minimum=1,
    maximum=1_000_000,
    alias="gradient_aggregation_group",  # as MindSpore has it
)
TRANSPORT = setting(
    "auto",
    "auto: shared memory where all ranks are on one host's CPU",
    choices=("auto", "backend", "shared_memory"),
)


@frozen
class ParallelConfig:
    stages: tuple[int, ...] = setting(
        (), "layers of each pipeline stage, encoder and decoder counted as one; none given: cut by cost", minimum=0
    )
    schedule: str = setting("1f1b", "the order of forward and backward passes in a pipeline", choices=KINDS)
    interleave: int = setting(
        1,
        "chunks of layers that each pipeline stage holds; more than one if schedule is interleaved",
        minimum=1,
        maximum=1000,
    )
    vocab_emb_dp: bool = setting(
        False, "every model-parallel rank holds the whole embedding tables instead of some rows of each"
    )
    recompute: bool = setting(False, "backward computes the activations of each layer again instead of keeping them")
    recompute_layers: tuple[int, ...] = setting(
        (), "layers of which alone backward does so, from 0, the decoder's counted on after the encoder's", minimum=0
    )
    optimizer_shard: bool = setting(
        True, "each data-parallel rank keeps the optimizer's state of its share of the weights only"
    )
    gradient_accumulation_shard: bool = setting(
        False,
        "gradients are summed after each micro batch, so that a rank keeps those of its share of the weights only",
    )
    gradient_groups: int = GRADIENT_GROUPS
    transport: str = TRANSPORT

    def chunks(self, pp: int) -> int:
        """Return how many chunks of layers each of `pp` stages holds: a single stage holds the model as one."""
        return self.interleave if pp > 1 else 1
