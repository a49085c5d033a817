"""The parallel configurations of MindSpore's `nn.transformer`, by their names, arguments and defaults.

They say how a network is meant to be divided. How many ranks there are, and along which axes, the run says (`tlaunch run --dp
--mp --pp --micro-batches`); a `TransformerOpParallelConfig` with other numbers is refused when the training begins. The numbers of
`OpParallelConfig` and `EmbeddingOpParallelConfig` are kept and not looked at: operators and embeddings follow the run.
"""

from __future__ import annotations

from typing import Any

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Layout
from launcher.trainer.parallel.place import this_place


@frozen
class OpParallelConfig:
    """The configuration of a single operator."""

    data_parallel: int = 1
    model_parallel: int = 1


@frozen
class EmbeddingOpParallelConfig:
    """The configuration of an embedding: with `vocab_emb_dp` every model-parallel rank holds the whole table, else some of its rows.

    It is that of the embedding it is given to; `TransformerOpParallelConfig.embedding_dp_mp_config` is one with the network's own choice.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    vocab_emb_dp: bool = True

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        return OpParallelConfig(self.data_parallel, self.model_parallel)


@frozen
class TransformerRecomputeConfig:
    """Says what backward computes again instead of keeping it. Collectives within a layer are always among it."""

    recompute: bool = False
    parallel_optimizer_comm_recompute: bool = False  # weights are never gathered layer by layer here
    mp_comm_recompute: bool = True
    recompute_slice_activation: bool = False

    def __post_init__(self) -> None:
        for name, only in (
            ("parallel_optimizer_comm_recompute", False),
            ("mp_comm_recompute", True),
            ("recompute_slice_activation", False),
        ):
            if getattr(self, name) != only:
                raise UsageError(
                    f"TransformerRecomputeConfig: {name} = {not only}, and here it is always {only}",
                    hint=f"leave {name} out",
                )


@frozen
class TransformerOpParallelConfig:
    """The configuration of a whole network.

    Raises:
        UsageError: a number is below 1, or there are experts: no layer is a mixture of them.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    expert_parallel: int = 1
    pipeline_stage: int = 1
    micro_batch_num: int = 1
    recompute: bool | TransformerRecomputeConfig = False  # of all layers; `lambda_func` may choose some instead
    optimizer_shard: bool = (
        False  # each data-parallel rank keeps the optimizer's state of its share of the weights only
    )
    gradient_aggregation_group: int = (
        4  # parts in which gradients are summed, unless `lambda_func` gives layers numbers
    )
    vocab_emb_dp: bool = True

    def __post_init__(self) -> None:
        for name in (
            "data_parallel",
            "model_parallel",
            "expert_parallel",
            "pipeline_stage",
            "micro_batch_num",
            "gradient_aggregation_group",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"TransformerOpParallelConfig: {name} = {value!r} is no whole number of 1 or more")
        if self.expert_parallel > 1:
            raise UsageError(
                f"TransformerOpParallelConfig: expert_parallel = {self.expert_parallel}, and there are no experts",
                hint="expert_parallel = 1",
            )

    @classmethod
    def of_run(cls, **others: Any) -> TransformerOpParallelConfig:
        """Return the configuration of the layout that `tlaunch run` was asked for; `others` are arguments beside its four numbers.

        Outside a run it is that of one rank. Under mpirun or srun alone it blocks until all ranks have come.

        Raises:
            UsageError, RefusedLayoutError: the environment does not say where this rank is, as `this_place`.
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
        """True where all layers are computed again in backward."""
        return self.recompute if isinstance(self.recompute, bool) else self.recompute.recompute

    @property
    def dp_mp_config(self) -> OpParallelConfig:
        """The configuration that operators within layers take, and `CrossEntropyLoss`."""
        return OpParallelConfig(self.data_parallel, self.model_parallel)

    @property
    def embedding_dp_mp_config(self) -> EmbeddingOpParallelConfig:
        """The configuration that `VocabEmbedding` takes."""
        return EmbeddingOpParallelConfig(self.data_parallel, self.model_parallel, self.vocab_emb_dp)
