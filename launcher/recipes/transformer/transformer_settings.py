"""The settings of the encoder-decoder Transformer. Defaults suit the sample corpus on a laptop CPU."""

from __future__ import annotations

from dataclasses import field

from launcher.checkpoint.index import BLEU, LOSS
from launcher.core.frozen import frozen
from launcher.recipes.settings import setting
from launcher.recipes.train import CheckpointConfig, ParallelConfig, TrainConfig

BEST_METRICS = (LOSS, BLEU)
TOKEN_IDS = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}  # of special tokens, as sentencepiece calls them
FALLING = ("linear", "cosine")  # schedules that need the number of the last step


@frozen
class ModelConfig:
    vocabulary_size: int = setting(
        1200, "number of subword tokens: rows of each embedding and of the output head", minimum=8, maximum=1_000_000
    )
    d_model: int = setting(128, "width of every layer", minimum=1, maximum=65_536)
    heads: int = setting(8, "attention heads; divides d_model", minimum=1, maximum=65_536)
    feed_forward_dim: int = setting(512, "inner width of the feed-forward blocks", minimum=1, maximum=262_144)
    activation: str = setting(
        "relu", "activation inside the feed-forward blocks; gelu uses the tanh approximation", choices=("relu", "gelu")
    )
    encoder_layers: int = setting(2, "layers of the encoder", minimum=0, maximum=1000)
    decoder_layers: int = setting(2, "layers of the decoder", minimum=1, maximum=1000)
    norm: str = setting(
        "pre",
        "pre: before each sublayer and after the last; post: after each residual sum, as exports to transformers need",
        choices=("pre", "post"),
    )
    positions: str = setting(
        "learned",
        "how token positions are encoded; exports to transformers need sinusoidal",
        choices=("learned", "sinusoidal"),
    )
    scale_embedding: bool = setting(False, "multiply word embeddings by the square root of d_model")
    share: str = setting(
        "none",
        "weight sharing: target embedding and output head (decoder), or also the source embedding (all)",
        choices=("none", "decoder", "all"),
    )
    dropout: float = setting(0.05, "dropout on embeddings and residual branches", minimum=0, below=1)
    attention_dropout: float = setting(0.0, "dropout on attention weights", minimum=0, below=1)
    activation_dropout: float = setting(0.0, "dropout inside the feed-forward blocks", minimum=0, below=1)

    @property
    def drops(self) -> bool:
        return any((self.dropout, self.attention_dropout, self.activation_dropout))


@frozen
class DataConfig:
    source_language: str = setting(
        "", "code of the language to translate from; empty: as the names of the data files say"
    )
    target_language: str = setting(
        "", "code of the language to translate into; empty: as the names of the data files say"
    )
    normalise: bool = setting(
        True, "normalise text (NFC), drop invisible characters and merge spaces, in training and translation"
    )
    tokenizer: str = setting("", "sentencepiece model to use; empty: train one on the training pairs")
    source_length: int = setting(
        32,
        "maximum tokens of a source sentence, including its end mark; longer ones are truncated",
        minimum=2,
        maximum=131_072,
    )
    target_length: int = setting(
        32,
        "maximum tokens of a target sentence, including its end mark; longer ones are truncated",
        minimum=2,
        maximum=131_072,
    )

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language


@frozen
class TransformerTrainConfig(TrainConfig):
    epochs: int = setting(1, "passes over the training pairs", minimum=1)
    steps: int = TrainConfig.steps
    batch_size: int = setting(32, "sentence pairs per optimizer step, over all ranks", minimum=1, maximum=1_000_000_000)
    batch_tokens: int = setting(
        0,
        "target tokens per step, over all ranks, in pairs of similar length; 0: use `batch_size` pairs",
        minimum=0,
        maximum=1_000_000_000,
    )
    micro_batches: int = TrainConfig.micro_batches
    optimizer: str = setting(
        "adamw",
        "adamw, or MindSpore's adam_weight_decay, which has no bias correction",
        choices=("adamw", "adam_weight_decay"),
    )
    learning_rate: float = setting(3e-3, "AdamW's learning rate at the end of warm-up", minimum=0)
    warmup_steps: int = setting(150, "steps in which the learning rate grows from zero", minimum=0)
    schedule: str = setting(
        "inverse_sqrt",
        "learning rate schedule after warm-up; linear and cosine decay until the last step",
        choices=("inverse_sqrt", "constant", *FALLING),
    )
    minimum_rate: float = setting(0.0, "learning rate of the last step, for linear and cosine", minimum=0)
    beta1: float = setting(0.9, "decay of AdamW's first moment", minimum=0, below=1)
    beta2: float = setting(0.98, "decay of AdamW's second moment", minimum=0, below=1)
    epsilon: float = setting(1e-9, "AdamW's term that avoids division by zero", minimum=1e-20)
    weight_decay: float = setting(0.01, "weight decay of matrices; norms and biases have none", minimum=0)
    clip_norm: float = setting(1.0, "maximum norm of the total gradient; 0 means unlimited", minimum=0)
    label_smoothing: float = setting(0.1, "probability spread over the vocabulary, in training", minimum=0, below=1)
    seed: int = setting(1, "random seed for initial weights, sample order and dropout", minimum=0)
    precision: str = TrainConfig.precision
    device: str = TrainConfig.device
    validate_every: int = TrainConfig.validate_every
    early_stopping: int = TrainConfig.early_stopping
    best_metric: str = setting(
        "loss",
        "measure of improvement, for early_stopping and checkpoint.keep_best; bleu needs bleu_sentences",
        choices=BEST_METRICS,
    )
    profile_steps: int = TrainConfig.profile_steps
    bleu_sentences: int = setting(
        0, "sentences translated greedily at each validation to compute BLEU; 0: none", minimum=0, maximum=1_000_000
    )
    translations: int = setting(
        5, "test sentences translated greedily and shown at the end", minimum=0, maximum=1_000_000
    )


@frozen
class TransformerSettings:
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    train: TransformerTrainConfig = field(default_factory=TransformerTrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
