"""The parallel configurations of MindSpore's `nn.transformer`, with the same names, arguments and defaults.

The run's options set the layout of ranks (`tlaunch run --dp --mp --pp --micro-batches`). A
`TransformerOpParallelConfig` with other numbers is an error when the training starts. The numbers of
`OpParallelConfig` and `EmbeddingOpParallelConfig` are ignored: operators and embeddings use the run's layout.

`NetworkSettings` has the settings of a training, in the form that checkpoints and saved models store.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.recipes.train import CheckpointConfig, ParallelConfig
from launcher.trainer.parallel.place import this_place


@frozen
class OpParallelConfig:
    """The parallel configuration of one operator."""

    data_parallel: int = 1
    model_parallel: int = 1


@frozen
class EmbeddingOpParallelConfig:
    """The parallel configuration of one embedding.

    With `vocab_emb_dp` every model-parallel rank holds the full table; otherwise each holds some of its rows.
    `TransformerOpParallelConfig.embedding_dp_mp_config` returns one with the network's `vocab_emb_dp`.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    vocab_emb_dp: bool = True

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        return OpParallelConfig(self.data_parallel, self.model_parallel)


@frozen
class TransformerRecomputeConfig:
    """The options of activation recompute. Recomputing a layer in backward also repeats its collectives."""

    recompute: bool = False
    parallel_optimizer_comm_recompute: bool = False  # weights are never gathered layer by layer
    mp_comm_recompute: bool = True
    recompute_slice_activation: bool = False

    def __post_init__(self) -> None:
        only_supported = {
            "parallel_optimizer_comm_recompute": False,
            "mp_comm_recompute": True,
            "recompute_slice_activation": False,
        }
        for name, only in only_supported.items():
            if getattr(self, name) != only:
                raise UsageError(
                    f"TransformerRecomputeConfig: {name} = {not only}, and only {only} is supported",
                    hint=f"leave {name} out",
                )


@frozen
class TransformerOpParallelConfig:
    """The parallel configuration of a network.

    Raises:
        UsageError: a number is below 1, or `expert_parallel` is above 1: experts are not supported.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    expert_parallel: int = 1
    pipeline_stage: int = 1
    micro_batch_num: int = 1
    recompute: bool | TransformerRecomputeConfig = False  # for all layers; `lambda_func` may choose some instead
    optimizer_shard: bool = False  # shard the optimizer's state over the data-parallel ranks
    gradient_aggregation_group: int = 4  # messages with all gradients, unless `lambda_func` numbers the layers
    vocab_emb_dp: bool = True

    def __post_init__(self) -> None:
        flags = {"recompute", "optimizer_shard", "vocab_emb_dp"}
        for name, value in vars(self).items():
            if name not in flags and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                told = f"TransformerOpParallelConfig: {name} = {value!r}"
                raise UsageError(f"{told}, but an integer of 1 or more is expected")
        if self.expert_parallel > 1:
            raise UsageError(
                f"TransformerOpParallelConfig: expert_parallel = {self.expert_parallel}, and experts are not supported",
                hint="set expert_parallel = 1",
            )

    @classmethod
    def of_run(cls, **others: Any) -> TransformerOpParallelConfig:
        """Return a configuration with the layout of the current `tlaunch run`. `others` sets all other options.

        Outside a run the layout is one rank. Under mpirun or srun without tlaunch, this blocks until all ranks have
        joined.

        Raises:
            UsageError, RefusedLayoutError: the environment does not define this rank's position; see `this_place`.
        """
        layout = this_place(micro_batches=1).layout
        return cls(
            data_parallel=layout.dp,
            model_parallel=layout.mp,
            pipeline_stage=layout.pp,
            micro_batch_num=layout.micro_batches,
            **others,
        )

    @property
    def layout(self) -> Layout:
        return Layout(
            dp=self.data_parallel, mp=self.model_parallel, pp=self.pipeline_stage, micro_batches=self.micro_batch_num
        )

    @property
    def recomputes(self) -> bool:
        """True if all layers are recomputed in backward."""
        return self.recompute if isinstance(self.recompute, bool) else self.recompute.recompute

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        """The configuration for operators in layers, and for `CrossEntropyLoss`."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    @property
    def embedding_dp_mp_config(self) -> EmbeddingOpParallelConfig:
        """The configuration for `VocabEmbedding`."""
        return EmbeddingOpParallelConfig(self.data_parallel, self.model_parallel, self.vocab_emb_dp)


@frozen
class NetworkModel:
    """The class names of network and optimizer. Training resumes only from checkpoints with the same classes."""

    network: str = ""  # class name
    optimizer: str = ""  # class name


@frozen
class NetworkData:
    """The order of the samples. Training resumes only from checkpoints with the same order."""

    shuffle: bool = True


@frozen
class NetworkTrainConfig:
    """The arguments of `train` that the training loop uses."""

    epochs: int = 1
    steps: int = 0  # optimizer steps after which to stop; 0: after the epochs
    batch_size: int = 32  # samples per optimizer step, over all ranks
    optimizer: str = ""  # class and arguments
    clip_norm: float = 0.0
    seed: int = 1  # for sample order and dropout
    validate_every: int = 0
    early_stopping: int = 0
    profile_steps: int = 0


@frozen
class NetworkSettings:
    """The settings for training a custom network, with the same sections as a bundled program."""

    model: NetworkModel = field(default_factory=NetworkModel)
    data: NetworkData = field(default_factory=NetworkData)
    train: NetworkTrainConfig = field(default_factory=NetworkTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
