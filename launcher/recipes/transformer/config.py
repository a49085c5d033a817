"""The settings of the encoder-decoder Transformer. Defaults suit the sample corpus on a laptop's CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting


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
class TrainConfig:
    epochs: int = setting(1, "passes over the training pairs", minimum=1)
    steps: int = setting(0, "optimizer steps after which to stop; 0 means after the epochs", minimum=0)
    batch_size: int = setting(32, "sentence pairs per optimizer step, over all ranks", minimum=1)
    micro_batches: int = setting(1, "parts into which each data-parallel rank cuts its share of a batch", minimum=1)
    learning_rate: float = setting(3e-3, "AdamW's step size after warm-up", minimum=0)
    warmup_steps: int = setting(150, "steps over which the learning rate grows from zero", minimum=0)
    beta1: float = setting(0.9, "decay of AdamW's first moment", minimum=0, below=1)
    beta2: float = setting(0.98, "decay of AdamW's second moment", minimum=0, below=1)
    epsilon: float = setting(1e-9, "AdamW's guard against division by zero", minimum=1e-20)
    weight_decay: float = setting(0.01, "decay of matrices; norms and biases are never decayed", minimum=0)
    clip_norm: float = setting(1.0, "largest norm of the whole gradient; 0 means unlimited", minimum=0)
    label_smoothing: float = setting(0.1, "probability spread evenly over the vocabulary", minimum=0, below=1)
    seed: int = setting(1, "of initial weights, sample order and dropout", minimum=0)
    precision: str = setting("float32", "of weights and arithmetic", choices=("float32", "float64"))
    device: str = setting("auto", "auto: the accelerator where every local rank gets one", choices=("auto", "cpu"))
    validate_every: int = setting(0, "steps between validations; 0 means only at the end", minimum=0)
    translations: int = setting(5, "test sentences whose greedy translations are shown at the end", minimum=0)


@frozen
class TransformerRecipe:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
