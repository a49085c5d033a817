"""The modules of MindSpore's `nn.transformer`, and `train`, which trains a custom network on dp * mp * pp ranks.

    from launcher.trainer import api

    config = api.TransformerOpParallelConfig.of_run()
    net = Net(config)          # embeddings, one api.Transformer, an output layer, a loss: examples/transformer.py
    api.train(net, samples, batch_size=32, optimizer=api.AdamWeightDecay(1e-4, weight_decay=0.1))

Run it with `tlaunch run --dp 2 --mp 2 --pp 2 --micro-batches 2 -- python net.py`. The modules are ordinary torch
modules, and also work in a single process.

To change the arguments of `train`: training.py (public: examples/transformer.py and docs/tutorial.md use them).
"""

from __future__ import annotations

from launcher.recipes.train import CheckpointConfig
from launcher.trainer.api.training import train
from launcher.trainer.own.train.configs import (
    EmbeddingOpParallelConfig,
    OpParallelConfig,
    TransformerOpParallelConfig,
    TransformerRecomputeConfig,
)
from launcher.trainer.own.train.layers import Transformer, TransformerDecoder, TransformerEncoder
from launcher.trainer.own.train.optimizers import AdamW, AdamWeightDecay, Momentum
from launcher.trainer.own.train.parallel_modules import AttentionMask, CrossEntropyLoss, VocabEmbedding

__all__ = [
    "AdamW", "AdamWeightDecay", "AttentionMask", "CheckpointConfig", "CrossEntropyLoss", "EmbeddingOpParallelConfig", "Momentum",
    "OpParallelConfig", "Transformer", "TransformerDecoder", "TransformerEncoder", "TransformerOpParallelConfig",
    "TransformerRecomputeConfig", "VocabEmbedding", "train",
]  # fmt: skip
