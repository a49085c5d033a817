"""`launcher.trainer.api`: the modules against torch's own, and what is refused; ranks of it train in tests/programs/api_ranks.py."""

import copy
import json
import operator
import re
import subprocess
import sys

import pytest
import torch
from torch import nn

from launcher.core import env
from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.mesh.coordinates import Coordinate
from launcher.trainer import api
from launcher.trainer.api.training import config_of
from launcher.trainer.model.dropout import DropoutBits
from launcher.trainer.own.divide import micro_batches
from launcher.trainer.own.train.calls import arguments_of, traced_network
from launcher.trainer.own.train.configs import NetworkSettings
from launcher.trainer.own.train.parallel_modules import DrawnDropout, draw_dropouts
from launcher.trainer.own.train.parameter_plan import plan_network, stages_of_network
from launcher.trainer.own.train.pipeline_parts import loss_masks, stage_networks
from launcher.trainer.own.train.samples import SampleOrder, collated, digest_of

from .over_rows import OverRows

B, S, T, D, F, H = 3, 5, 4, 16, 24, 4
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in (env.WORLD_SIZE, env.RANK, env.TLAUNCH_DP, env.TLAUNCH_MP, env.TLAUNCH_PP, env.TLAUNCH_RUN_DIR):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)


def test_an_import_starts_nothing():
    """No process group, no thread, no file: it can be imported wherever a network is defined."""
    code = (
        "import os, threading; before = set(os.listdir('/proc/self/fd')); from launcher.trainer import api; import torch;"
        "assert not torch.distributed.is_initialized() and threading.active_count() == 1;"
        "assert set(os.listdir('/proc/self/fd')) == before; print(sorted(api.__all__))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'VocabEmbedding'" in done.stdout


def copied_attention(ours, theirs):
    """Give torch's attention our weights, which are no longer those of a new module."""
    for module in (ours.query, ours.key, ours.value, ours.output):
        module.bias.data.normal_()
    theirs.in_proj_weight.data = torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]).data
    theirs.in_proj_bias.data = torch.cat([ours.query.bias, ours.key.bias, ours.value.bias]).data
    theirs.out_proj.weight.data, theirs.out_proj.bias.data = ours.output.weight.data, ours.output.bias.data


def copied_layer(ours, theirs):
    copied_attention(ours.attention, theirs.self_attn)
    pairs = [(ours.feed_forward.expand, theirs.linear1), (ours.feed_forward.contract, theirs.linear2)]
    norms = [ours.attention_norm, ours.feed_forward_norm]
    if hasattr(ours, "cross_attention"):
        copied_attention(ours.cross_attention, theirs.multihead_attn)
        norms.insert(1, ours.cross_attention_norm)
    for norm, other in zip(norms, (theirs.norm1, theirs.norm2, getattr(theirs, "norm3", None)), strict=False):
        norm.weight.data.normal_()
        pairs.append((norm, other))
    for one, other in pairs:
        other.weight.data, other.bias.data = one.weight.data, one.bias.data


def masks(*shape):
    """Return a mask of ones and zeros, in which each query sees the first key."""
    mask = torch.randint(0, 2, shape).double()
    mask[..., 0] = 1
    return mask


def for_torch(mask_BTS):
    """Return what torch's attention takes: True where a query may not attend, for each head."""
    return (mask_BTS == 0).repeat_interleave(H, dim=0)


@pytest.mark.parametrize("act", ["gelu", "relu"])
def test_encoder_and_decoder_compute_what_torch_does(act):
    activation = "relu" if act == "relu" else lambda x: nn.functional.gelu(x, approximate="tanh")
    ours = api.Transformer(D, B, F, S, T, 2, 2, H, hidden_act=act).double().eval()
    common = {"dropout": 0.0, "activation": activation, "batch_first": True, "norm_first": True, "dtype": torch.float64}
    encoder = [nn.TransformerEncoderLayer(D, H, F, **common) for _ in range(2)]
    decoder = [nn.TransformerDecoderLayer(D, H, F, **common) for _ in range(2)]
    for layers, theirs in ((ours.encoder, encoder), (ours.decoder, decoder)):
        for layer, other in zip(layers.blocks.values(), theirs, strict=True):
            copied_layer(layer, other)
    source, target = torch.randn(B, S, D).double(), torch.randn(B, T, D).double()
    source_mask, target_mask, memory_mask = masks(B, S, S), masks(B, T, T), masks(B, T, S)
    output, *rest = ours(source, source_mask, target, target_mask, memory_mask)
    encoded, decoded = source, target
    for layer in encoder:
        encoded = layer(encoded, src_mask=for_torch(source_mask))
    for layer in decoder:
        decoded = layer(decoded, encoded, tgt_mask=for_torch(target_mask), memory_mask=for_torch(memory_mask))
    assert rest == [None, None]
    torch.testing.assert_close(output, decoded)
    alone = api.Transformer(D, B, F, S, T, 2, 0, H, hidden_act=act).double().eval()
    alone.encoder.load_state_dict(ours.encoder.state_dict())
    torch.testing.assert_close(alone(source, source_mask)[0], encoded)


def test_a_residual_sum_after_the_norm():
    """post_layernorm_residual adds what a block gives to its normed input, as MindSpore's does."""
    ours = api.TransformerEncoder(B, 1, D, F, S, H, post_layernorm_residual=True).double().eval()
    layer = ours.blocks["0"]
    hidden = torch.randn(B, S, D).double()
    normed = layer.attention_norm(hidden)
    summed = normed + layer.attention(normed)
    normed = layer.feed_forward_norm(summed)
    torch.testing.assert_close(ours(hidden)[0], normed + layer.feed_forward(normed))


def test_what_is_masked_everywhere_is_no_nan():
    """A row of padding sees nothing, and gets the mean of all."""
    ours = api.TransformerEncoder(B, 1, D, F, S, H).eval()
    assert torch.isfinite(ours(torch.randn(B, S, D), torch.zeros(B, S, S))[0]).all()


def test_masks_embeddings_and_loss():
    mask = api.AttentionMask(3)(torch.tensor([[1, 1, 0]]))
    assert mask.tolist() == [[[1, 0, 0], [1, 1, 0], [0, 0, 0]]]
    embedding = api.VocabEmbedding(7, D)
    vectors, table = embedding(torch.tensor([[1, 6]]))
    assert torch.equal(vectors[0], table[[1, 6]])
    assert table is embedding.embedding_table
    assert 0.005 < float(table.detach().std()) < 0.02
    logits, label = torch.randn(4, 7), torch.tensor([0, 6, 2, 1])
    weights = torch.tensor([1.0, 0.0, 1.0, 1.0])
    expected = nn.functional.cross_entropy(logits[[0, 2, 3]], label[[0, 2, 3]])
    torch.testing.assert_close(api.CrossEntropyLoss()(logits, label, weights), expected)
    assert api.CrossEntropyLoss()(logits, label, torch.zeros(4)).item() == 0


def test_dropout_without_a_training_is_drawn_by_torch():
    """Modules that are called by hand drop in training, by torch's generator, and not in evaluation."""
    ours = api.TransformerEncoder(B, 1, D, F, S, H, hidden_dropout_rate=0.5)
    hidden = torch.randn(B, S, D)
    first, second = ours(hidden)[0], ours(hidden)[0]
    assert not torch.equal(first, second)
    assert torch.equal(ours.eval()(hidden)[0], ours(hidden)[0])


def test_a_dropout_of_torch_is_drawn_by_rows():
    """Of a tensor with the rows first, or positions row by row, the same elements of a row are dropped whatever the part it is in."""
    network = nn.Sequential(nn.Dropout(0.5))
    draw_dropouts(network)
    dropout, whole = network[0], torch.ones(4, 3, 8)
    assert isinstance(dropout, DrawnDropout)
    assert torch.equal(dropout(whole), whole)
    dropout.begin(DropoutBits.of(torch.arange(4), 3, seed=1, step=1))
    dropped = dropout(whole)
    assert 0.2 < float((dropped == 0).float().mean()) < 0.8
    assert not torch.equal(dropout(whole), dropped)  # the second call has masks of its own
    dropout.begin(DropoutBits.of(torch.arange(2, 4), 3, seed=1, step=1))
    assert torch.equal(dropout(torch.ones(6, 8)).view(2, 3, 8), dropped[2:])
    with pytest.raises(UsageError):
        dropout(torch.ones(3, 8))


REFUSED = {
    "rows of positions": ("shape", lambda: api.TransformerEncoder(B, 1, D, F, S, H)(torch.ones(B * S, D))),
    "another length": ("shape", lambda: api.TransformerEncoder(B, 1, D, F, S, H)(torch.ones(B, T, D))),
    "a mask of another length": (
        "shape",
        lambda: api.TransformerEncoder(B, 1, D, F, S, H)(torch.ones(B, S, D), torch.ones(B, S, T)),
    ),
    "heads": ("heads", lambda: api.Transformer(D, B, F, S, T, num_heads=3)),
    "a decoder alone": ("decoder", lambda: api.Transformer(D, B, F, S, T, 0, 1)),
    "no decoder inputs": ("decoder_inputs", lambda: api.Transformer(D, B, F, S, T, 1, 1)(torch.ones(B, S, D))),
    "an activation": ("swish", lambda: api.Transformer(D, B, F, S, T, hidden_act="swish")),
    "a rate": ("1.0", lambda: api.Transformer(D, B, F, S, T, hidden_dropout_rate=1.0)),
    "use_past": ("use_past", lambda: api.Transformer(D, B, F, S, T, use_past=True)),
    "no encoder inputs": ("encoder_inputs", lambda: api.Transformer(D, B, F, S, T, 1, 0)(None)),
    "experts": ("moe_config", lambda: api.Transformer(D, B, F, S, T, moe_config=object())),
    "types": ("types", lambda: api.Transformer(D, B, F, S, T, param_init_type=torch.float16)),
    "experts of a configuration": ("expert_parallel", lambda: api.TransformerOpParallelConfig(expert_parallel=2)),
    "no number": ("data_parallel", lambda: api.TransformerOpParallelConfig(data_parallel=0)),
    "recompute": (
        "recompute_slice_activation",
        lambda: api.TransformerRecomputeConfig(recompute_slice_activation=True),
    ),
    "initial weights": ("he", lambda: api.VocabEmbedding(7, D, param_init="he")),
    "a table of another shape": ("param_init", lambda: api.VocabEmbedding(7, D, param_init=torch.ones(D, 7))),
    "a mask of a loss": (
        "input_mask",
        lambda: api.CrossEntropyLoss()(torch.ones(4, 7), torch.ones(4), torch.ones(2, 2)),
    ),
    "a mask of positions": ("input_mask", lambda: api.AttentionMask(3)(torch.ones(2, 4))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_modules(name):
    word, work = REFUSED[name]
    with pytest.raises(UsageError, match=word):
        work()


class Net(nn.Module):
    """A network whose parts can be told from its graph: two embeddings, a Transformer, a head."""

    def __init__(self, config=None):
        super().__init__()
        self.word = api.VocabEmbedding(7, D)
        self.base = api.Transformer(D, None, F, S, S, 1, 1, 2, 0.0, 0.0, parallel_config=config)
        self.head = nn.Linear(D, 7)
        self.loss = api.CrossEntropyLoss()

    def forward(self, source, label):
        word, _ = self.word(source)
        mask = (label != 0).to(word.dtype)
        output = self.base(word, None, word, mask[:, :, None] * mask[:, None, :])[0]
        return self.loss(self.head(output).flatten(0, 1), label.flatten(), mask.flatten())

    def logits(self, source):
        word, _ = self.word(source)
        return self.head(self.base(word, None, word)[0]).flatten(0, 1)


def batch(rows=4):
    return torch.randint(0, 7, (rows, S)), torch.randint(0, 7, (rows, S))


def samples_of():
    return list(zip(*batch(8), strict=True))


def net_of(forward, *unused):
    """Return a network with another forward, without the modules that it does not use."""
    net = type("Other", (Net,), {"forward": forward})()
    for name in unused:
        delattr(net, name)
    return net


def traced_of(net):
    return traced_network(net, arguments_of(net, 2), batch(), CPU)


IN_PARTS = api.TransformerOpParallelConfig(micro_batch_num=2)


def test_stages_have_what_they_compute_and_no_more():
    """Parameters of the first stage and of the last one; together they compute what the network does."""
    net = Net()
    first, last = stage_networks(traced_of(net), 2)
    of_first, of_last = ({name.partition(".")[0] for name, _ in part.named_parameters()} for part in (first, last))
    assert (of_first, of_last) == ({"word", "base"}, {"base", "head"})
    masks = loss_masks(traced_of(net), of_stages=True)
    source, label = batch()
    assert masks.counts((source, label), torch.float32) == {"loss": [torch.tensor(float((label != 0).sum()))]}
    assert not list(masks.network.parameters())


def test_samples_are_batches_in_an_order_that_the_seed_decides():
    order = SampleOrder(10, 4, seed=1, shuffle=True)
    found = list(order.batches(1, 4))
    assert [(each.epoch, each.step_of_epoch) for each in found] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert list(order.batches(3, 4)) == found[2:]  # whatever came before
    assert len({*found[0].samples, *found[1].samples}) == 8
    assert found[0].samples != found[2].samples
    plain = SampleOrder(10, 4, seed=1, shuffle=False)
    assert [list(each.samples) for each in plain.batches(1, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(UsageError):
        SampleOrder(3, 4, seed=1, shuffle=True)


def test_a_batch_is_dealt_to_data_parallel_ranks():
    layout = api.TransformerOpParallelConfig(data_parallel=2, micro_batch_num=2).layout
    parts = [micro_batches(8, layout, Coordinate(pp=0, dp=dp, mp=0)) for dp in range(2)]
    assert parts == [[slice(0, 2), slice(4, 6)], [slice(2, 4), slice(6, 8)]]


@pytest.mark.parametrize("samples", [[{"a": 1}], ["text"], [(torch.ones(1),), (torch.ones(2),)]])
def test_samples_that_make_no_batch_are_refused(samples):
    with pytest.raises(UsageError):
        collated(samples, range(len(samples)), CPU, torch.float32)


def untraceable(self, source, label):
    return Net.forward(self, source, label) if bool(label.sum()) else label.sum()


def masks_by_parameters(self, source, label):
    mask = (self.head.bias.sum() + label) != 0
    return self.loss(self.logits(source), label.flatten(), mask.flatten())


@pytest.mark.parametrize("forward", [untraceable, masks_by_parameters])
def test_a_network_that_cannot_be_seen_through_trains_on_one_stage(forward, capfd):
    """The log says why each part divides by its own mask, if all masks count alike."""
    kind = type("Other", (Net,), {"forward": forward})
    source, label = batch(8)
    samples = list(zip(source, label.clamp(min=1), strict=True))
    assert api.train(kind(), samples, batch_size=4, steps=2) is not None
    assert "divides its loss" not in capfd.readouterr().out  # of one part
    assert api.train(kind(IN_PARTS), samples, batch_size=4, steps=2) is not None
    assert "divides its loss by the sum of its own mask" in capfd.readouterr().out


def test_masks_that_cannot_be_counted_before_are_refused(capfd):
    """Each part would divide by its own mask: the message says why, and what was computed."""
    common = {"batch_size": 4, "steps": 2, "parallel_config": IN_PARTS}
    net, samples, told = (
        net_of(untraceable),
        samples_of(),
        "its own mask; the loss of 4 rows is .* the mean over 2 parts",
    )
    with pytest.raises(RefusedLayoutError, match=told) as refused:
        api.train(net, samples, **common)
    assert "parts_may_differ" in refused.value.hint
    assert api.train(net, samples, parts_may_differ=True, **common) is not None
    assert "the mean over 2 parts" in capfd.readouterr().out


CHANGES = {
    "head.bias is frozen": lambda net: net.head.bias.requires_grad_(False),
    "several dtypes": lambda net: net.head.double(),
    "Dropout2d": lambda net: net.add_module("more", nn.Dropout2d()),
    r"unused\.weight is not used": lambda net: net.add_module("unused", nn.Linear(2, 2)),
    "a lambda_func needs": lambda net: net.add_module(
        "more", api.TransformerEncoder(None, 1, D, F, S, 2, lambda_func=lambda *_, **__: None)
    ),
}


@pytest.mark.parametrize("told", CHANGES)
def test_networks_that_are_refused(told):
    net = Net()
    CHANGES[told](net)
    with pytest.raises(UsageError, match=told):
        api.train(net, samples_of(), batch_size=4, steps=1)


def test_what_is_no_loss_of_parameters_is_refused():
    logits = net_of(lambda self, source, _label: self.head(self.word(source)[0]), "base")
    empty = type("Empty", (nn.Module,), {"forward": lambda self, source, _label: source.float().mean()})()
    for net, told in ((logits, "returns a tensor of the shape"), (empty, "no parameters")):
        with pytest.raises(UsageError, match=told):
            api.train(net, samples_of(), batch_size=4, steps=1)


@pytest.mark.parametrize(
    ("norm", "told"),
    [(nn.BatchNorm1d(S), "not a mean over rows"), (nn.InstanceNorm1d(S, track_running_stats=True), "buffer head")],
    ids=["batch", "instance"],
)
def test_statistics_of_a_batch_are_those_of_one_part(norm, told):
    """One process keeps them, as torch does; the parts of a batch would each have their own."""
    samples, net = samples_of(), Net()
    net.head = nn.Sequential(nn.Linear(D, 7), copy.deepcopy(norm))
    weights = api.train(net, samples, batch_size=8, steps=1, shuffle=False)
    net(*map(torch.stack, zip(*samples, strict=True)))
    assert torch.allclose(weights["head.1.running_mean"], net.head[1].running_mean, atol=1e-6)
    with pytest.raises(RefusedLayoutError, match=told):
        api.train(net, samples, batch_size=4, parallel_config=IN_PARTS)


def test_gradients_are_compared_on_request():
    def forward(self, source, label):
        hidden = OverRows.apply(self.word(source)[0])
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), label.flatten())

    net, samples = net_of(forward, "base", "loss"), samples_of()
    common = {"batch_size": 4, "steps": 1, "parallel_config": IN_PARTS}
    assert api.train(net, samples, **common) is not None
    with pytest.raises(RefusedLayoutError, match=r"the gradient of word\.word\.weight over 4 rows"):
        api.train(net, samples, check_gradients=True, **common)


ARGUMENTS = {
    "batch_size is 0": {"batch_size": 0},
    "batch_size = 9": {"batch_size": 9},
    "schedule": {"schedule": "interleaved"},
    "early_stopping needs": {"early_stopping": 1},
    "gradient_accumulation_shard": {"gradient_accumulation_shard": True},
    "samples, but there are 1": {"validation": [batch(1)]},
    "checkpoint.keep": {"checkpoint": api.CheckpointConfig(keep=0)},
    "checkpoint.every_steps": {"checkpoint": api.CheckpointConfig(every_steps=-1)},
    "checkpoint.files": {"checkpoint": api.CheckpointConfig(files="foo")},
    "device": {"device": "gpu"},
    "transport": {"transport": "carrier"},
    "clip_norm": {"clip_norm": -1.0},
    "every gradient to nothing": {"clip_norm": 1e-320},
    "clip_norm is not a finite": {"clip_norm": "1"},
    "learning_rate is not a finite": {"optimizer": api.AdamW(learning_rate=10**400)},
    "steps": {"steps": 1.5},
    "the optimizer is a": {"optimizer": object()},
}


@pytest.mark.parametrize("told", ARGUMENTS)
def test_arguments_that_are_refused(told):
    with pytest.raises(UsageError, match=told):
        api.train(Net(), samples_of(), **{"batch_size": 4, "steps": 1, **ARGUMENTS[told]})


def test_a_configuration_must_be_the_runs():
    config = api.TransformerOpParallelConfig(data_parallel=2, model_parallel=2)
    with pytest.raises(RefusedLayoutError) as told:
        api.train(Net(config), samples_of(), batch_size=4)
    assert "--dp 2 --mp 2 --pp 1" in told.value.hint
    net = nn.ModuleList([Net(config), Net(api.TransformerOpParallelConfig())])
    with pytest.raises(UsageError):
        config_of(net, None)


def test_weights_fit_the_network_that_was_given():
    """The network itself is left as it was; all names, and what is shared, are in the weights."""
    net = Net()
    net.head.bias = None
    net.head.weight = net.word.word.weight  # one parameter of two modules
    net.register_buffer("scale", torch.ones(2))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    weights = api.train(net, samples_of(), batch_size=4, steps=2)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    net.load_state_dict(weights)
    assert net.head.weight is net.word.word.weight
    assert not torch.equal(net.head.weight, before["head.weight"])


def losses(text):
    return [float(each) for each in re.findall(r"^epoch: \d+ step: \d+.*, loss is (\S+), ", text, re.MULTILINE)]


def called_twice(self, source, label):
    logits = self.logits(source)
    one = self.loss(logits, label.flatten(), (label != 0).flatten())
    return one + self.loss(logits, source.flatten(), (source == 1).flatten())


def changes_its_input(self, source, label):
    label = label.sub_(1).clamp(min=0)
    return self.loss(self.logits(source), label.flatten(), (label != 0).flatten())


def optional_mask(self, source, label, mask=None, *, scale=2.0):
    mask = label != 0 if mask is None else mask
    return self.loss(self.logits(source), label.flatten(), mask.flatten()) * scale


def unused_loss(self, source, label):
    logits = self.logits(source)
    self.loss(logits, source.flatten(), torch.ones_like(source).flatten())
    return self.loss(logits, label.flatten(), (label != 0).flatten())


@pytest.mark.parametrize("forward", [called_twice, changes_its_input, optional_mask, unused_loss])
def test_the_first_loss_is_that_of_the_network_called_by_hand(forward, capfd):
    net = net_of(forward)
    source, label = batch(8)
    expected = float(net(source.clone(), label.clone()).detach())
    samples = [(one.clone(), other.clone()) for one, other in zip(source, label, strict=True)]
    api.train(net, samples, batch_size=8, steps=1, shuffle=False)
    assert losses(capfd.readouterr().out) == [pytest.approx(expected, abs=1e-4)]


def residual_in_place(self, hidden):
    before = hidden
    hidden *= 2
    return self.head(before)


def relu_in_place(self, hidden):
    nn.functional.relu(hidden, inplace=True)
    return self.head(hidden)


def method_in_place(self, hidden):
    hidden.mul_(2)
    return self.head(hidden)


@pytest.mark.parametrize("after", [residual_in_place, relu_in_place, method_in_place])
def test_what_is_changed_in_place_and_used_as_before_cannot_be_traced(after):
    def forward(self, source, label):
        return self.loss(after(self, self.word(source)[0]).flatten(0, 1), label.flatten(), (label != 0).flatten())

    with pytest.raises(UsageError, match="in place"):
        traced_of(net_of(forward))


def test_what_is_changed_in_place_and_goes_on_under_its_name_is_traced():
    """`x += y`, which a residual sum may be, stays that."""

    def forward(self, source, label):
        hidden = self.word(source)[0] * 1
        hidden += 1
        return self.loss(self.head(hidden).flatten(0, 1), label.flatten(), (label != 0).flatten())

    assert operator.iadd in [each.target for each in traced_of(net_of(forward)).nodes]


def test_buffers_are_those_of_the_network():
    """What is not persistent is not in the weights; what a forward changes is what it was after the training, not after traces."""

    def forward(self, source, label):
        self.steps.add_(1)
        return Net.forward(self, source, label)

    net = net_of(forward)
    net.register_buffer("passing", torch.ones(2), persistent=False)
    net.register_buffer("steps", torch.zeros(()))
    weights = api.train(net, samples_of(), batch_size=4, steps=3)
    net.load_state_dict(weights)
    assert float(weights["steps"]) == 3
    assert float(net.steps) == 3


def test_a_dropout_of_several_places_is_one():
    drop = nn.Dropout(0.5)
    network = nn.ModuleDict({"one": drop, "other": nn.Sequential(nn.Linear(2, 2), drop)})
    draw_dropouts(network)
    assert network["one"] is network["other"][1]
    assert network["one"].p == 0.5


@pytest.mark.parametrize("options", [{"ignore_index": 0}, {"weight": torch.arange(7.0)}, {"reduction": "sum"}])
@pytest.mark.parametrize("validates", [False, True])
def test_a_loss_that_depends_on_how_a_batch_is_divided_is_refused(options, validates):
    """In training, or in evaluation alone if there are samples for that; one process computes it."""

    def forward(self, source, label):
        logits = self.head(self.word(source)[0]).flatten(0, 1)
        return nn.functional.cross_entropy(logits, label.flatten(), **({} if self.training and validates else options))

    net, samples = net_of(forward, "base", "loss"), samples_of()
    common = {"batch_size": 4, "steps": 1, **({"validation": samples} if validates else {})}
    assert api.train(net, samples, **common) is not None
    with pytest.raises(RefusedLayoutError, match="the mean over 2 parts"):
        api.train(net, samples, parallel_config=IN_PARTS, **common)
    if validates:
        assert api.train(net, samples, batch_size=4, steps=1, parallel_config=IN_PARTS) is not None


def test_a_buffer_that_every_part_changes_is_refused():
    samples = [(one, other.clamp(min=1)) for one, other in samples_of()]
    with pytest.raises(RefusedLayoutError, match="buffer passes"):
        api.train(counting_net(), samples, batch_size=4, parallel_config=IN_PARTS)


class Random:
    """Samples that are others each time."""

    def __len__(self):
        return 8

    def __getitem__(self, number):
        return torch.randint(0, 7, (S,)), torch.randint(0, 7, (S,))


SAMPLES = {
    "is different each time": Random(),
    "a sample has 1 items": [(one,) for one in batch(8)[0]],
    "not a sequence of samples": iter(()),
    "no samples": [],
    "outside vocab_size": [(torch.full((S,), 7), torch.zeros(S, dtype=torch.int64))] * 8,
}


@pytest.mark.parametrize("told", SAMPLES)
def test_samples_that_are_refused(told):
    with pytest.raises(UsageError, match=told):
        api.train(Net(), SAMPLES[told], batch_size=4, steps=1)


def test_a_missing_number_is_the_same_each_time():
    assert digest_of([(torch.tensor([float("nan")]),)] * 4)


def test_an_optimizer_takes_no_parameters():
    """Those of MindSpore and torch take them first."""
    for make in (api.AdamWeightDecay, api.AdamW):
        with pytest.raises(UsageError, match="learning_rate is a generator"):
            make(Net().parameters(), 1e-3)


def test_a_run_is_gone_on_from_by_its_name(tmp_path, monkeypatch, capfd):
    """`latest` is this run by then, and means the newest of the others that has checkpoints."""
    samples = samples_of()
    common = {"batch_size": 4, "checkpoint": api.CheckpointConfig(every_steps=1)}
    for number, name in enumerate(("1-first", "2-second"), 1):
        monkeypatch.setenv(env.TLAUNCH_RUN_DIR, str(tmp_path / name))
        api.train(Net(), samples, steps=number, **common)
    (tmp_path / "latest").symlink_to("3-third")
    monkeypatch.setenv(env.TLAUNCH_RUN_DIR, str(tmp_path / "3-third"))
    (tmp_path / "3-third").mkdir()
    for resume, step in (("1-first", 1), ("latest", 2), (tmp_path / "latest", 2), (tmp_path / "1-first", 1)):
        capfd.readouterr()
        api.train(Net(), samples, steps=3, resume=resume, output=tmp_path / "kept" / f"{step} {type(resume)}", **common)
        assert f"after step {step}" in capfd.readouterr().out


def test_a_second_training_has_a_place_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv(env.TLAUNCH_RUN_DIR, str(tmp_path))
    samples = samples_of()
    api.train(Net(), samples, batch_size=4, steps=1)
    with pytest.raises(UsageError):
        api.train(Net(), samples, batch_size=4, steps=1)
    api.train(Net(), samples, batch_size=4, steps=1, output=tmp_path / "second")
    assert (tmp_path / "second" / "model" / "model.safetensors").is_file()


def test_validation_counts_by_the_masks_of_evaluation(tmp_path):
    """A network may call its loss another number of times in training than in evaluation, in another order."""

    def forward(self, source, label):
        logits = self.logits(source)
        extra = self.loss(logits, source.flatten(), (source == 1).flatten()) if self.training else 0.0
        return extra + self.loss(logits, label.flatten(), (label != 0).flatten())

    net = net_of(forward)
    samples = samples_of()
    net.load_state_dict(api.train(net, samples, batch_size=8, steps=1, validation=samples, output=tmp_path))
    told = json.loads((tmp_path / "model" / "config.json").read_text())["training"]["validation_loss"]
    expected = net.eval()(*map(torch.stack, zip(*samples, strict=True)))
    assert told == pytest.approx(float(expected.detach()), abs=1e-5)


def counting(self, source, label):
    """Count the forward passes, in a number and in a mean, as no graph can."""
    self.passes.add_(1)
    self.mean.mul_(0.5).add_(float(label.sum()))
    return Net.forward(self, source, label)


def counting_net():
    net = net_of(counting)
    net.register_buffer("passes", torch.zeros((), dtype=torch.int64))
    net.register_buffer("mean", torch.zeros(()))
    return net


def test_a_training_that_goes_on_has_the_buffers_that_it_had(tmp_path):
    net = counting_net()
    net.register_buffer("positions", torch.arange(2**40, 2**40 + S).expand(2, -1))  # of one storage, and large
    samples = samples_of()
    common = {"batch_size": 4, "checkpoint": api.CheckpointConfig(every_steps=2)}
    whole = api.train(net, samples, steps=4, output=tmp_path / "whole", **common)
    api.train(net, samples, steps=2, output=tmp_path / "begun", **common)
    begun = {"output": tmp_path / "again", "resume": tmp_path / "begun" / "checkpoints"}
    again = api.train(net, samples, steps=4, **begun, **common)
    assert int(again["passes"]) == 4
    assert torch.equal(again["positions"], net.positions)
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_a_training_that_goes_on_with_another_optimizer_says_so(tmp_path, capfd):
    """Its state is taken as it is, whatever it means there."""
    samples = samples_of()
    common = {"batch_size": 4, "checkpoint": api.CheckpointConfig(every_steps=1)}
    api.train(Net(), samples, steps=1, optimizer=api.AdamW(1e-3), output=tmp_path / "one", **common)
    for beta2, is_told in ((0.999, False), (0.9, True)):
        capfd.readouterr()
        again = {"resume": tmp_path / "one" / "checkpoints", "output": tmp_path / str(beta2)}
        api.train(Net(), samples, steps=2, optimizer=api.AdamW(1e-3, beta2=beta2), **again, **common)
        told = capfd.readouterr().out
        assert ("settings changed since step-1: train.steps 1 -> 2, train.optimizer AdamW(" in told) == is_told
        assert "settings changed since step-1: train.steps 1 -> 2" in told


def test_layers_that_two_stages_share_are_named_as_such():
    """One parameter's name is enough, and it is not before or after the Transformer."""
    net = Net()
    net.base = api.Transformer(D, None, F, S, S, 2, 0, 2, 0.0, 0.0)
    net.base.encoder.blocks["1"] = net.base.encoder.blocks["0"]
    parts = stage_networks(traced_of(net), 2)
    stages = stages_of_network(net, NetworkSettings(), 2)
    with pytest.raises(RefusedLayoutError, match=r"layers on several stages use base\.encoder\.blocks\.0\.\S+"):
        plan_network(net, parts, stages, 1, is_traced=True)


def test_a_network_trains_in_training_mode(tmp_path):
    modes = []

    def forward(self, source, label):
        modes.append(self.training)
        return Net.forward(self, source, label)

    net = net_of(forward).eval()
    samples = samples_of()
    common = {"validation": samples[:4], "validate_every": 1, "output": tmp_path}
    api.train(net, samples, batch_size=4, steps=2, shuffle=False, **common)
    assert modes[-4:] == [True, False, True, False]
    assert not net.training


def test_a_training_that_had_ended_before_a_restart_returns_what_it_trained(tmp_path, monkeypatch, capfd):
    """The code after it may have failed; another training is not taken for it."""
    samples = samples_of()
    common = {"batch_size": 4, "output": tmp_path}
    weights = api.train(Net(), samples, steps=1, **common)
    monkeypatch.setenv(env.TLAUNCH_ATTEMPT, "1")
    capfd.readouterr()
    again = api.train(Net(), samples, steps=1, **common)
    assert losses(capfd.readouterr().out) == []
    assert weights.keys() == again.keys()
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    with pytest.raises(UsageError, match="already exists") as told:
        api.train(Net(), samples, steps=2, **common)
    assert told.value.hint == "name another output directory"


@pytest.mark.parametrize("rate", [0.0, 0.1])
def test_what_torch_draws_itself_is_told(rate, capfd):
    """Each part of a batch draws its own: the log says so, unless nothing is dropped."""

    def forward(self, source, label):
        hidden = nn.functional.dropout(self.word(source)[0], rate, self.training)
        return self.loss(self.head(hidden).flatten(0, 1), label.flatten(), (label != 0).flatten())

    api.train(net_of(forward, "base"), samples_of(), batch_size=4, steps=1, parallel_config=IN_PARTS)
    assert ("draws random numbers from torch's generator" in capfd.readouterr().out) == bool(rate)


def test_errors_of_the_loop_name_no_options(tmp_path):
    """`tlaunch run` takes no `--set`, `--data` and `--resume` for a program of one's own."""
    samples = samples_of()
    common = {"batch_size": 4, "checkpoint": api.CheckpointConfig(every_steps=1)}
    api.train(Net(), samples, steps=1, output=tmp_path / "one", **common)
    other = {"output": tmp_path / "other", "resume": tmp_path / "one" / "checkpoints"}
    with pytest.raises(UsageError) as told:
        api.train(Net(), samples, steps=2, seed=2, **other, **common)
    assert told.value.hint == "set train.seed=1, or do not resume"
    with pytest.raises(UsageError) as told:
        api.train(Net(), samples, steps=1, **common)
    assert told.value.hint == "set an output directory, or a checkpoint directory"
