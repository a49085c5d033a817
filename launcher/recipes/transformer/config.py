"""The settings of the encoder-decoder Transformer. Defaults suit the sample corpus on a laptop's CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.train import CheckpointConfig, ParallelConfig, TrainConfig


@frozen
class ModelConfig:
    vocabulary_size: int = setting(1200, "rows of each embedding and of the output head", minimum=8)
    d_model: int = setting(128, "width of every layer", minimum=1)
    heads: int = setting(8, "attention heads; divides d_model", minimum=1)
    feed_forward_dim: int = setting(512, "inner width of the feed-forward blocks", minimum=1)
    encoder_layers: int = setting(2, "layers of the encoder", minimum=0)
    decoder_layers: int = setting(2, "layers of the decoder", minimum=1)
    dropout: float = setting(0.05, "dropout on embeddings and residual branches", minimum=0, below=1)


@frozen
class DataConfig:
    direction: str = setting("fr_en", "from which language to which", choices=("fr_en", "en_fr"))
    source_length: int = setting(32, "tokens of a source sentence, its end mark included; the rest is cut", minimum=2)
    target_length: int = setting(32, "tokens of a target sentence, its end mark included; the rest is cut", minimum=2)


@frozen
class TransformerSettings:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
