"""The settings of the encoder-decoder Transformer. Defaults suit the sample corpus on a laptop's CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.train import CheckpointConfig, ParallelConfig, TrainConfig

FALLING = ("linear", "cosine")  # schedules that depend on the number of the last step


@frozen
class ModelConfig:
    vocabulary_size: int = setting(1200, "rows of each embedding and of the output head", minimum=8, maximum=1_000_000)
    d_model: int = setting(128, "width of every layer", minimum=1, maximum=65_536)
    heads: int = setting(8, "attention heads; divides d_model", minimum=1, maximum=65_536)
    feed_forward_dim: int = setting(512, "inner width of the feed-forward blocks", minimum=1, maximum=262_144)
    activation: str = setting(
        "relu", "between the layers of a feed-forward block; gelu by tanh", choices=("relu", "gelu")
    )
    encoder_layers: int = setting(2, "layers of the encoder", minimum=0, maximum=1000)
    decoder_layers: int = setting(2, "layers of the decoder", minimum=1, maximum=1000)
    norm: str = setting(
        "pre", "pre: before each sublayer and at both ends; post: after each residual sum", choices=("pre", "post")
    )
    positions: str = setting("learned", "how a token's place is encoded", choices=("learned", "sinusoidal"))
    scale_embedding: bool = setting(False, "word vectors are multiplied by the square root of d_model")
    share: str = setting(
        "none",
        "one matrix for the target's embedding and the output head (decoder), or for the source's, too (all)",
        choices=("none", "decoder", "all"),
    )
    dropout: float = setting(0.05, "dropout on embeddings and residual branches", minimum=0, below=1)
    attention_dropout: float = setting(0.0, "dropout on the weights of attention", minimum=0, below=1)
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward blocks", minimum=0, below=1)

    @property
    def drops(self) -> bool:
        """True where anything is dropped in training."""
        return any((self.dropout, self.attention_dropout, self.activation_dropout))


@frozen
class DataConfig:
    direction: str = setting("fr_en", "from which language to which", choices=("fr_en", "en_fr"))
    normalise: bool = setting(
        True,
        "compose text (NFC), drop invisible characters and merge blanks, in training and in translate",
    )
    source_length: int = setting(
        32, "tokens of a source sentence, its end mark included; the rest is cut", minimum=2, maximum=131_072
    )
    target_length: int = setting(
        32, "tokens of a target sentence, its end mark included; the rest is cut", minimum=2, maximum=131_072
    )


@frozen
class TransformerTrainConfig(TrainConfig):
    epochs: int = setting(1, "passes over the training pairs", minimum=1)
    steps: int = TrainConfig.steps
    batch_size: int = setting(32, "sentence pairs per optimizer step, over all ranks", minimum=1, maximum=1_000_000_000)
    batch_tokens: int = setting(
        0,
        "target tokens per step, over all ranks, of pairs that are about as long; 0: `batch_size` pairs",
        minimum=0,
        maximum=1_000_000_000,
    )
    micro_batches: int = TrainConfig.micro_batches
    optimizer: str = setting(
        "adamw",
        "adam_weight_decay: as in MindSpore, AdamW without bias correction",
        choices=("adamw", "adam_weight_decay"),
    )
    learning_rate: float = setting(3e-3, "AdamW's step size after warm-up", minimum=0)
    warmup_steps: int = setting(150, "steps over which the learning rate grows from zero", minimum=0)
    schedule: str = setting(
        "inverse_sqrt",
        "of the learning rate after warm-up; linear and cosine fall to the last step",
        choices=("inverse_sqrt", "constant", *FALLING),
    )
    minimum_rate: float = setting(0.0, "the learning rate of the last step, where it is linear or cosine", minimum=0)
    beta1: float = setting(0.9, "decay of AdamW's first moment", minimum=0, below=1)
    beta2: float = setting(0.98, "decay of AdamW's second moment", minimum=0, below=1)
    epsilon: float = setting(1e-9, "AdamW's guard against division by zero", minimum=1e-20)
    weight_decay: float = setting(0.01, "decay of matrices; norms and biases are never decayed", minimum=0)
    clip_norm: float = setting(1.0, "largest norm of the whole gradient; 0 means unlimited", minimum=0)
    label_smoothing: float = setting(0.1, "probability spread evenly over the vocabulary", minimum=0, below=1)
    seed: int = setting(1, "of initial weights, sample order and dropout", minimum=0)
    precision: str = TrainConfig.precision
    device: str = TrainConfig.device
    validate_every: int = TrainConfig.validate_every
    early_stopping: int = TrainConfig.early_stopping
    profile_steps: int = TrainConfig.profile_steps
    bleu_sentences: int = setting(
        0,
        "validation sentences whose greedy translations have a BLEU at each validation; 0: none",
        minimum=0,
        maximum=1_000_000,
    )
    translations: int = setting(
        5, "test sentences whose greedy translations are shown at the end", minimum=0, maximum=1_000_000
    )


@frozen
class TransformerSettings:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TransformerTrainConfig = field(default_factory=TransformerTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
