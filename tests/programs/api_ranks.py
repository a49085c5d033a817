"""Train the tutorial's network through `launcher.trainer.api` on several ranks, and in one process: equal weights and validation losses, in float64.

    api_ranks.py DIRECTORY [CASE ...]

Dropout is on, masks count other numbers of positions in each row, and gradients are clipped. One process is a loop of torch alone
where nothing is dropped, and `train` on one rank where something is. Exit 0 when all are equal.
"""

import json
import os
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
import torch._dynamo  # else each rank imports it where it makes an optimizer of torch
from ranks import fork_ranks
from torch import nn

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.trainer import api

LENGTH, VOCABULARY, HIDDEN, PAD = 6, 40, 16, 1
BATCH, STEPS, RATE = 8, 4, 1e-2
TOLERANCE = 1e-9


class Embedding(nn.Module):
    def __init__(self, config, dropout):
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        self.position = api.VocabEmbedding(LENGTH, HIDDEN, config.embedding_dp_mp_config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids, positions):
        word, table = self.word(ids)
        position, _ = self.position(positions)
        return self.dropout(word + position), table


class Net(nn.Module):
    """The tutorial's network; with `tied`, its head is the table of the targets' words."""

    def __init__(self, config, *, tied=False, dropout=0.2, **arguments):
        super().__init__()
        self.source, self.target = Embedding(config, dropout), Embedding(config, dropout)
        sizes = {
            "hidden_size": HIDDEN, "batch_size": BATCH, "ffn_hidden_size": 2 * HIDDEN, "num_heads": 4,
            "src_seq_length": LENGTH, "tgt_seq_length": LENGTH, "encoder_layers": 2, "decoder_layers": 2,
            "hidden_dropout_rate": dropout, "attention_dropout_rate": dropout,
        }  # fmt: skip
        self.base = api.Transformer(**{**sizes, **arguments}, parallel_config=config)
        self.attention_mask = api.AttentionMask(LENGTH)
        self.norm = nn.LayerNorm(HIDDEN)
        if not tied:
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.loss = api.CrossEntropyLoss(config.dp_mp_config)
        self.last_dropout = nn.Dropout(dropout)

    def forward(self, *batch):
        source, positions, source_mask, target, memory_mask, label = batch
        encoder_input, _ = self.source(source, positions)
        decoder_input, table = self.target(target, positions)
        mask = (target != PAD).to(decoder_input.dtype)
        output, _, _ = self.base(
            encoder_input, source_mask, decoder_input, self.attention_mask(mask), memory_mask=memory_mask
        )
        output = self.last_dropout(self.norm(output))
        logits = self.head(output) if hasattr(self, "head") else output @ table.T
        return self.loss(logits.flatten(0, 1), label.flatten(), mask.flatten())


class EncoderOnly(nn.Module):
    """A Transformer without a decoder, whose mean is compared with numbers: another loss, and a mean over rows."""

    def __init__(self, config, *, dropout=0.2):
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        self.base = api.Transformer(
            HIDDEN, None, 2 * HIDDEN, LENGTH, LENGTH, encoder_layers=3, decoder_layers=0, num_heads=4,
            hidden_dropout_rate=dropout, attention_dropout_rate=0.0, hidden_act="relu", parallel_config=config,
        )  # fmt: skip
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, source, wanted):
        word, _ = self.word(source)
        return nn.functional.mse_loss(self.head(self.base(word)[0].mean(dim=1))[:, 0], wanted)


class WithNorm(EncoderOnly):
    """Normalises by the batch, and keeps running statistics."""

    def __init__(self, config, **arguments):
        super().__init__(config, **arguments)
        self.norm = nn.BatchNorm1d(HIDDEN)

    def forward(self, source, wanted):
        hidden = self.norm(self.base(self.word(source)[0])[0].mean(dim=1))
        return nn.functional.mse_loss(self.head(hidden)[:, 0], wanted)


class OwnLoss(Net):
    """A network whose loss is a mean over rows, computed in float64 whatever the network's type is."""

    def forward(self, *batch):
        source, positions, source_mask, target, memory_mask, label = batch
        encoder_input, _ = self.source(source, positions)
        decoder_input, _ = self.target(target, positions)
        output, _, _ = self.base(encoder_input, source_mask, decoder_input, None, memory_mask)
        logits = self.head(self.last_dropout(self.norm(output))).double()
        return nn.functional.cross_entropy(logits.flatten(0, 1), label.flatten())


class TwoModules(nn.Module):
    """An encoder and a decoder of their own, in code that torch.fx cannot trace: it asks for a value."""

    def __init__(self, config):
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        common = {"hidden_size": HIDDEN, "ffn_hidden_size": HIDDEN, "num_heads": 2, "parallel_config": config}
        self.encoder = api.TransformerEncoder(batch_size=None, num_layers=1, seq_length=LENGTH, **common)
        self.decoder = api.TransformerDecoder(
            num_layers=1, batch_size=None, src_seq_length=LENGTH, tgt_seq_length=LENGTH, **common
        )
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, source, wanted):
        word, _ = self.word(source)
        encoded, _ = self.encoder(word)
        decoded, _ = self.decoder(word, None, encoded)
        assert bool(torch.isfinite(decoded).all())
        return nn.functional.mse_loss(self.head(decoded.mean(dim=1))[:, 0], wanted)


class TwoLosses(Net):
    """In training another loss is added, called before the one that counts; a third one is called and not used."""

    def forward(self, *batch):
        source, positions, source_mask, target, memory_mask, label = batch
        encoder_input, _ = self.source(source, positions)
        decoder_input, _ = self.target(target, positions)
        mask = (target != PAD).to(decoder_input.dtype)
        output, _, _ = self.base(encoder_input, source_mask, decoder_input, self.attention_mask(mask), memory_mask)
        logits = self.head(self.last_dropout(self.norm(output))).flatten(0, 1)
        extra = self.loss(logits, target.flatten(), (target > VOCABULARY // 2).flatten()) if self.training else 0.0
        self.loss(logits, source.flatten(), torch.ones_like(source).flatten())
        return extra + self.loss(logits, label.flatten(), mask.flatten())


class UnusedLoss(Net):
    """A loss is called, and what it gives is not used: stages do not call it."""

    def forward(self, source, positions, source_mask, target, memory_mask, label):  # noqa: PLR0917 - a batch's items
        logits = self.head(self.target.word(target)[0]).flatten(0, 1)
        self.loss(logits, source.flatten(), torch.ones_like(source).flatten())
        return super().forward(source, positions, source_mask, target, memory_mask, label)


class Wrapped(nn.Module):
    """Hands its whole batch on, as modules around a network do."""

    def __init__(self, config, **arguments):
        super().__init__()
        self.net = Net(config, **arguments)

    def forward(self, *batch):
        return self.net(*batch[:-1], batch[-1])


class SharedLayers(nn.Module):
    """Two encoders have the same layers."""

    def __init__(self, config, *, dropout=0.2):
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        sizes = {"hidden_size": HIDDEN, "ffn_hidden_size": HIDDEN, "num_heads": 2, "parallel_config": config}
        rates = {"hidden_dropout_rate": 0.0, "attention_dropout_rate": 0.0}
        self.one, self.other = (
            api.TransformerEncoder(batch_size=None, num_layers=1, seq_length=LENGTH, **sizes, **rates) for _ in range(2)
        )
        self.other.blocks = self.one.blocks
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(HIDDEN, 1)

    def forward(self, source, wanted):
        word, _ = self.word(source)
        hidden = self.other(self.dropout(self.one(word)[0]))[0]
        return nn.functional.mse_loss(self.head(hidden.mean(dim=1))[:, 0], wanted)


def pairs(count=24):
    """Return sentences, of whose targets each fourth is full and the others end in 1 to 3 positions of padding."""
    numbers = torch.Generator().manual_seed(3)
    source, target = (torch.randint(2, VOCABULARY, (count, LENGTH), generator=numbers) for _ in range(2))
    for row in range(count):
        target[row, LENGTH - row % 4 :] = PAD
    positions = torch.arange(LENGTH).expand(count, -1)
    ones = torch.ones(count, LENGTH, LENGTH)
    return torch.utils.data.TensorDataset(source, positions, ones, target, ones, target.roll(-1, dims=1))


def numbered(count=24):
    numbers = torch.Generator().manual_seed(4)
    return torch.utils.data.TensorDataset(
        torch.randint(0, VOCABULARY, (count, LENGTH), generator=numbers), torch.randn(count, generator=numbers)
    )


def by_halves(network, layer_id, offset, parallel_config, layers):
    """Do what the tutorial's pipeline_func does, for 2 + 2 layers on 2 stages."""
    del layers
    network.pipeline_stage = min((layer_id + offset) * parallel_config.pipeline_stage // 4, 1)
    network.set_comm_fusion(1 + layer_id)
    if layer_id == 0:
        network.recompute()


@dataclass(frozen=True)
class Case:
    dp: int = 1
    mp: int = 1
    pp: int = 1
    micro_batches: int = 1
    make: type = Net
    network: dict = field(default_factory=dict)  # that change what is computed
    config: dict = field(default_factory=dict)
    train: dict = field(default_factory=dict)
    is_plain: bool = False  # compared with a loop of torch, without dropout
    dtype: torch.dtype = torch.float64
    tolerance: float = TOLERANCE


RELU = {"tied": True, "post_layernorm_residual": True, "hidden_act": "relu"}
SHARDS = {"optimizer_shard": True, "vocab_emb_dp": False}
CASES = {
    "plain": Case(network={"dropout": 0.0}, is_plain=True),
    "plain dp2 M2": Case(dp=2, micro_batches=2, network={"dropout": 0.0}, is_plain=True),
    "plain mp2 pp2": Case(mp=2, pp=2, micro_batches=2, network={"dropout": 0.0}, is_plain=True),
    "dp2": Case(dp=2, config={"optimizer_shard": True}),
    "mp2 of rows": Case(mp=2, config={"vocab_emb_dp": False}),
    "pp2 by halves": Case(pp=2, micro_batches=2, network={"lambda_func": by_halves}),
    "pp4 gpipe recompute": Case(pp=4, micro_batches=4, config={"recompute": True}, train={"schedule": "gpipe"}),
    "2x2x2": Case(2, 2, 2, 2),
    "2x2x2 tied": Case(2, 2, 2, 2, network=RELU),
    "2x2x2 shards": Case(2, 2, 2, 2, config=SHARDS, train={"gradient_accumulation_shard": True}),
    "encoder 2x1x2": Case(2, 1, 2, 2, make=EncoderOnly),
    "encoder mp4": Case(mp=4, make=EncoderOnly),
    "batch norm mp2": Case(mp=2, make=WithNorm),
    "untraceable dp2 mp2": Case(2, 2, make=TwoModules),
    "two losses dp2": Case(dp=2, micro_batches=2, make=TwoLosses, network={"dropout": 0.0}, is_plain=True),
    "unused loss pp2": Case(pp=2, micro_batches=2, make=UnusedLoss, network={"dropout": 0.0}, is_plain=True),
    "wrapped mp2 pp2": Case(mp=2, pp=2, make=Wrapped, network={"dropout": 0.0}, is_plain=True),
    "shared layers dp2 mp2": Case(2, 2, make=SharedLayers, config={"recompute": True}),
    "float32 2x2x2": Case(2, 2, 2, 2, make=OwnLoss, dtype=torch.float32, tolerance=1e-4),
}


def trained(case, output, initial=1, **more):
    """Train on this rank as a case says; return all weights on rank 0, with the last validation's loss. `initial` seeds the first weights."""
    torch.manual_seed(initial)
    config = api.TransformerOpParallelConfig.of_run(**case.config)
    network = case.make(config, **case.network).to(case.dtype)
    torch.manual_seed(2 + int(os.environ.get(env.RANK, "0")))  # nothing else may be drawn by torch's generator
    samples = pairs() if issubclass(case.make, Net | Wrapped) else numbered()
    optimizer = api.AdamW(RATE, eps=1e-6, weight_decay=0.1)
    common = {"batch_size": BATCH, "steps": STEPS, "clip_norm": 0.5, "validation": samples, "output": output}
    weights = api.train(network, samples, optimizer=optimizer, **{**common, **case.train, **more})
    if weights is None:
        return None
    loss = json.loads((output / "model" / "config.json").read_text())["training"]["validation_loss"]
    return {**weights, "validation loss": torch.tensor(loss, dtype=torch.float64)}


def trained_plainly(case):
    """Train as `trained` does by torch alone, the samples in their order."""
    torch.manual_seed(1)
    network = case.make(api.TransformerOpParallelConfig(), **case.network).double()
    kinds = {True: [], False: []}
    for parameter in network.parameters():
        kinds[parameter.dim() > 1].append(parameter)
    groups = [{"params": kinds[True], "weight_decay": 0.1}, {"params": kinds[False], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    samples = pairs()
    for step in range(STEPS):
        first = step % (len(samples) // BATCH) * BATCH
        optimizer.zero_grad()
        network(*samples[first : first + BATCH]).backward()
        norm = torch.nn.utils.get_total_norm([each.grad for each in network.parameters()])
        for each in network.parameters():  # torch's clip_grad_norm_ adds 1e-6 to the norm
            each.grad *= min(1.0, 0.5 / norm)
        optimizer.step()
    network.eval()
    with torch.no_grad():
        batches = [samples[first : first + BATCH] for first in range(0, len(samples), BATCH)]
        loss = sum(network(*each) for each in batches) / len(batches)
    return {**{name: value.detach() for name, value in network.state_dict().items()}, "validation loss": loss}


def works(name, directory):
    case = CASES[name]
    weights = trained(case, directory / "runs" / name, **({"shuffle": False} if case.is_plain else {}))
    if weights is not None:
        torch.save(weights, directory / f"{name}.pt")


def off_by(directory, name, expected):
    found = torch.load(directory / f"{name}.pt", weights_only=True)
    assert found.keys() == expected.keys(), name
    # Not relative to each: biases of keys have no gradient but what rounding makes.
    return max(float((found[key] - each).abs().max()) for key, each in expected.items())


def alone(case, directory, made={}):  # noqa: B006 - what it has made stays
    """Return what one process comes to, made once for all cases that compute the same.

    It is a process of its own: this one must not run tensor operations before it forks.
    """
    without = {name: value for name, value in case.network.items() if name != "lambda_func"}
    kind = Case(make=case.make, network=without, dtype=case.dtype, is_plain=case.is_plain)
    if repr(kind) not in made:
        made[repr(kind)] = directory / f"alone{len(made)}.pt"

        def work():
            output = Path(tempfile.mkdtemp(dir=directory))
            weights = trained_plainly(kind) if kind.is_plain else trained(kind, output)
            torch.save(weights, made[repr(kind)])

        fork_ranks("alone", work)
    return torch.load(made[repr(kind)], weights_only=True)


def resumed(directory):
    """A training that ends after two steps on one layout goes on on another, to the weights of one that was not interrupted."""
    begun = directory / "begun"
    saves = {"checkpoint": api.CheckpointConfig(every_steps=2)}
    fork_ranks("begun", partial(trained, Case(), begun, **saves, steps=2), dp=2)

    def work():
        weights = trained(CASES["2x2x2"], directory / "runs" / "resumed", initial=9, resume=begun / "checkpoints")
        if weights is not None:
            torch.save(weights, directory / "resumed.pt")

    fork_ranks("resumed", work, mp=2, pp=2, micro_batches=2)


def is_refused(make, directory, **more):
    """Every rank is refused alike, with a hint, in processes of their own: an error leaves connections open."""
    with pytest.raises(RefusedLayoutError) as told:
        trained(Case(make=make, **more), directory / "refused")
    assert told.value.hint, make
    print(f"refused: {told.value.message}", flush=True)


class WithTable(Net):
    """The head is the table, which ranks have cut by rows."""

    def forward(self, *batch):
        source, positions, _, target, _, label = batch
        decoder_input, _ = self.target(target, positions)
        output = self.norm(self.base(self.source(source, positions)[0], None, decoder_input)[0])
        logits = output @ self.target.word.embedding_table.T
        return nn.functional.cross_entropy(logits.flatten(0, 1), label.flatten())


class Penalty:
    def forward(self, source, wanted):
        return super().forward(source, wanted) + sum(each.square().sum() for each in self.parameters())


class WithPenalty(Penalty, EncoderOnly):
    pass


class UnseenPenalty(Penalty, TwoModules):
    """Its code cannot be traced."""


class AskingForTraining(EncoderOnly):
    def forward(self, source, wanted):
        loss = super().forward(source, wanted)
        return loss + 1 if self.training else loss


def refused_copies(directory):
    """Ranks that bring other samples, as one who divides them by hand would, are told so."""
    rank = int(os.environ[env.RANK])
    network = Net(api.TransformerOpParallelConfig.of_run())
    with pytest.raises(UsageError, match="samples"):
        api.train(network, pairs(24 - 8 * rank), batch_size=BATCH, output=directory / "refused")


def trains_twice(directory):
    """A script may train several times, and each time all ranks find each other."""
    for number in range(3):
        trained(Case(make=EncoderOnly), directory / f"again {number}", steps=1)


class DrawingItself(nn.Module):
    """Its attention drops weights by a generator that each rank has."""

    def __init__(self, config):
        super().__init__()
        self.word = api.VocabEmbedding(VOCABULARY, HIDDEN, config.embedding_dp_mp_config)
        self.attention = nn.MultiheadAttention(HIDDEN, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, source, wanted):
        word, _ = self.word(source)
        return nn.functional.mse_loss(self.head(self.attention(word, word, word)[0].mean(dim=1))[:, 0], wanted)


class UnusedDropout(EncoderOnly):
    def __init__(self, config):
        super().__init__(config)
        self.dropout = nn.Dropout(0.1)

    def forward(self, source, wanted):
        self.dropout(self.word(source)[0])
        return super().forward(source, wanted)


def too_late(network, layer_id, offset, parallel_config, layers):
    del layer_id, offset, layers
    network.pipeline_stage = parallel_config.pipeline_stage


CUT = {"config": {"vocab_emb_dp": False}}
# What has no Transformer that stages could be made of, or does with parameters what a rank with some of them cannot.
REFUSED = [
    (1, 2, TwoModules, {}),
    (1, 2, Net, {"network": {"lambda_func": too_late}}),
    (1, 2, WithPenalty, {}),
    (1, 2, AskingForTraining, {}),
    (1, 2, UnusedDropout, {}),
    (1, 2, WithNorm, {}),
    (2, 1, DrawingItself, {}),
    (2, 1, UnseenPenalty, {}),
    (2, 1, WithTable, {"network": {"tied": True}, **CUT}),
    (2, 1, TwoModules, CUT),
    (2, 1, WithPenalty, {}),
]


def main():
    directory, *names = sys.argv[1:]
    directory = Path(directory)
    os.environ.pop(env.TLAUNCH_RUN_DIR, None)
    for name in names or CASES:
        case = CASES[name]
        expected = alone(case, directory)
        axes = {axis: getattr(case, axis) for axis in ("dp", "mp", "pp", "micro_batches")}
        fork_ranks(name, partial(works, name, directory), **axes)
        off = off_by(directory, name, expected)
        print(f"{name}: {off:.1e}", flush=True)
        assert off <= case.tolerance, name
    if not names:
        print("begun, and gone on from", flush=True)
        resumed(directory)
        off = off_by(directory, "resumed", alone(CASES["2x2x2"], directory))
        print(f"resumed: {off:.1e}", flush=True)
        assert off <= TOLERANCE
        for mp, pp, make, more in REFUSED:
            work = partial(is_refused, make, directory, **more)
            fork_ranks(make.__name__, work, mp=mp, pp=pp, micro_batches=pp)
        fork_ranks("twice", partial(trains_twice, directory), dp=2)
        fork_ranks("copies", partial(refused_copies, directory), dp=2)


if __name__ == "__main__":
    main()
