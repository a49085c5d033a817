"""The Transformer tutorial's network on any layout: `tlaunch run --dp 2 --mp 2 --pp 2 --micro-batches 2 -- python examples/transformer.py`.

With a path as its argument it reads the pairs of `tlaunch data preprocess` there (fr_en.txt), else the built-in sample.
"""

import sys
from collections import Counter
from pathlib import Path

import torch
from torch import nn

from launcher.corpus.dataset import find_splits, read_pairs
from launcher.corpus.sample import cached_sample
from launcher.trainer import api

LENGTH, VOCABULARY, HIDDEN = 10, 20_000, 128
UNKNOWN, PAD, END = range(3)  # ids of no word


class Embedding(nn.Module):
    def __init__(self, config: api.TransformerOpParallelConfig) -> None:
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        self.position = api.VocabEmbedding(LENGTH, HIDDEN, config.embedding_dp_mp_config)
        self.dropout = nn.Dropout(0.1)

    def forward(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        word, _table = self.word(ids)
        position, _table = self.position(positions)
        return self.dropout(word + position)


class Net(nn.Module):
    def __init__(self, config: api.TransformerOpParallelConfig, layers: int = 1) -> None:
        super().__init__()
        self.source, self.target = Embedding(config), Embedding(config)
        self.transformer = api.Transformer(
            hidden_size=HIDDEN, batch_size=None, ffn_hidden_size=HIDDEN, src_seq_length=LENGTH, tgt_seq_length=LENGTH,
            encoder_layers=layers, decoder_layers=layers, num_heads=8, attention_dropout_rate=0.0, hidden_dropout_rate=0.0,
            parallel_config=config,
        )  # fmt: skip
        self.attention_mask = api.AttentionMask(LENGTH, config.dp_mp_config)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.loss = api.CrossEntropyLoss(config.dp_mp_config)

    def forward(self, *batch: torch.Tensor) -> torch.Tensor:
        source, source_position, source_mask, target, target_position, memory_mask, label = batch
        mask = (target != PAD).float()
        encoder_input, decoder_input = self.source(source, source_position), self.target(target, target_position)
        output, _, _ = self.transformer(
            encoder_input, source_mask, decoder_input, self.attention_mask(mask), memory_mask
        )
        return self.loss(self.head(output).flatten(0, 1), label.flatten(), mask.flatten())


def samples(path: Path) -> torch.utils.data.TensorDataset:
    """Return the pairs whose source has at least LENGTH words, cut to these, as the tutorial's ToyDataset does."""
    pairs = [(source.split(), target.split()) for source, target in read_pairs(find_splits([path]).train)]
    pairs = [(source[:LENGTH], target[:LENGTH]) for source, target in pairs if len(source) >= LENGTH]
    ids = []
    for side in zip(*pairs, strict=True):
        words = Counter(word for sentence in side for word in sentence).most_common(VOCABULARY - 3)
        known = {word: number for number, (word, _count) in enumerate(words, start=3)}
        numbers = [[known.get(word, UNKNOWN) for word in sentence] for sentence in side]
        ids.append(torch.tensor([row + [PAD] * (LENGTH - len(row)) for row in numbers]))
    source, target = ids
    positions, ones = (
        torch.arange(LENGTH).expand(len(source), -1),
        torch.ones(LENGTH, LENGTH).expand(len(source), -1, -1),
    )
    label = torch.cat([target[:, 1:], torch.full((len(target), 1), END)], dim=1)
    return torch.utils.data.TensorDataset(source, positions, ones, target, positions, ones, label)


if __name__ == "__main__":
    torch.manual_seed(1)
    net = Net(api.TransformerOpParallelConfig.of_run())
    data = samples(Path(sys.argv[1]) if len(sys.argv) > 1 else cached_sample())
    api.train(net, data, batch_size=32, steps=50, optimizer=api.AdamWeightDecay(1e-4, weight_decay=0.1))
