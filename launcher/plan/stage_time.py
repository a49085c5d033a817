"""The time of a pipeline stage's forward and backward pass for one micro batch, in parts.

products      multiply-adds over the rate of products, and weights and activations through the memory
the rest      elements of whole features (norms, residuals), of cut ones (activations), and of attention scores
a layer       a fixed time, these two, and the all-reduces of mp; never less than the host's time for dispatching it
backward      twice the forward pass, and the forward pass again with recompute
head, loss    the product with the vocabulary, on the last stage
"""

from __future__ import annotations

from launcher.core.frozen import frozen
from launcher.plan.collective_time import all_reduce_s, message_s
from launcher.plan.configuration import Configuration, stage_layers
from launcher.plan.device_profile import DeviceProfile, Numbers
from launcher.plan.model_shape import LayerShape, ModelShape

ELEMENT_BYTES = 2  # half precision
_WHOLE_BYTES = 24  # read and written for each position and feature: two norms, two residuals with dropout
_LOSS_BYTES = 16  # for each logit: softmax in single precision


@frozen
class PassTime:
    """Seconds of one pass. The total is the sum of the parts."""

    compute: float = 0.0
    dispatch: float = 0.0  # waiting for the host
    mp: float = 0.0
    messages: float = 0.0  # sent to another stage

    @property
    def total(self) -> float:
        return self.compute + self.dispatch + self.mp + self.messages

    def __add__(self, other: PassTime) -> PassTime:
        return PassTime(
            self.compute + other.compute,
            self.dispatch + other.dispatch,
            self.mp + other.mp,
            self.messages + other.messages,
        )

    def times(self, factor: float) -> PassTime:
        """Return the time of `factor` such passes."""
        return PassTime(self.compute * factor, self.dispatch * factor, self.mp * factor, self.messages * factor)


@frozen
class StageTimes:
    """The passes of all stages. With v chunks, entry i belongs to rank i mod pp."""

    forward: tuple[PassTime, ...]
    backward: tuple[PassTime, ...]


def stage_times(model: ModelShape, configuration: Configuration, device: DeviceProfile) -> StageTimes:
    """Return the times of each stage for one micro batch."""
    count = configuration.layout.pp * configuration.chunks
    layers = stage_layers(model, count)
    passes = {
        kind: _layer_passes(kind, model, configuration, device)
        for kind in {kind for each in layers for kind, _ in each}
    }
    head = _head_pass(model, configuration, device.numbers)
    embedding = PassTime(
        compute=configuration.micro_batch * model.tokens * model.hidden * 8 / device.numbers.memory_bytes_per_s
    )
    host = PassTime(dispatch=device.numbers.micro_batch_s)
    pairs: list[tuple[PassTime, PassTime]] = []
    made: dict[object, tuple[PassTime, PassTime]] = {}  # equal stages are computed once
    for index, held in enumerate(layers):
        before = layers[index - 1][-1][0] if index else None
        key = (held, before, index == count - 1)
        if key not in made:
            ahead, back = host, host
            for kind, number in held:
                ahead += passes[kind][0].times(number)
                back += passes[kind][1].times(number)
            if before is None:
                ahead, back = ahead + embedding, back + embedding
            else:
                back += PassTime(messages=_hop_s(model, configuration, device, before))
            if index == count - 1:
                ahead, back = ahead + head, back + head.times(2)
            else:
                ahead += PassTime(messages=_hop_s(model, configuration, device, held[-1][0]))
            made[key] = (ahead, back)
        pairs.append(made[key])
    return StageTimes(tuple(ahead for ahead, _ in pairs), tuple(back for _, back in pairs))


def _layer_passes(
    layer: LayerShape, model: ModelShape, configuration: Configuration, device: DeviceProfile
) -> tuple[PassTime, PassTime]:
    """Return a layer's forward and backward pass."""
    numbers, software, mp = device.numbers, configuration.software, configuration.layout.mp
    positions = configuration.micro_batch * layer.positions
    multiply_adds = configuration.micro_batch * (layer.multiply_adds + layer.attention_multiply_adds)
    moved = ELEMENT_BYTES * (
        layer.weights / mp + positions * (4 * model.hidden + (layer.cut_features - 4 * model.hidden) / mp)
    )
    products = 2 * multiply_adds / mp / numbers.flops_per_s + moved / numbers.memory_bytes_per_s
    elements = positions * (_WHOLE_BYTES * model.hidden + layer.cut_features / mp) * numbers.elementwise_factor
    of_scores = 0.0 if software.flash_attention else numbers.score_bytes
    scores_s = of_scores * configuration.micro_batch * layer.scores / mp / numbers.memory_bytes_per_s
    work = products + elements / numbers.memory_bytes_per_s + scores_s + numbers.layer_fixed_s
    reduced_s = layer.all_reduces * all_reduce_s(
        mp, ELEMENT_BYTES * positions * model.hidden, stride=1, per_server=device.per_server, numbers=numbers
    )
    host = numbers.dispatch_s
    again = 1 if software.recompute == "full" else 0
    once_more = work if again else scores_s if software.recompute == "selective" else 0.0
    return (
        _at_least(host, PassTime(compute=work, mp=reduced_s)),
        _at_least(
            host * (again + numbers.backward_dispatch),
            PassTime(compute=2 * work + once_more, mp=(1 + again) * reduced_s),
        ),
    )


def _head_pass(model: ModelShape, configuration: Configuration, numbers: Numbers) -> PassTime:
    """Return the forward pass of the head and the loss."""
    positions, mp = configuration.micro_batch * model.seq, configuration.layout.mp
    logits = positions * model.vocab / mp
    flops_s = 2 * logits * model.hidden / numbers.flops_per_s
    moved = logits * _LOSS_BYTES + ELEMENT_BYTES * positions * model.hidden
    return PassTime(compute=numbers.head_factor * (flops_s + moved / numbers.memory_bytes_per_s))


def _hop_s(model: ModelShape, configuration: Configuration, device: DeviceProfile, last: LayerShape) -> float:
    """Return the time of the message after a stage that ends with the layer `last`."""
    # Stages of the decoder pass the encoder's output on. Each of the mp ranks sends its part, as Megatron-LM and DeepSpeed do.
    positions = model.tokens if last == model.decoder_layer else model.source_seq
    size = ELEMENT_BYTES * configuration.micro_batch * positions * model.hidden / configuration.layout.mp
    return message_s(size, configuration.layout, per_server=device.per_server, numbers=device.numbers)


def _at_least(host_s: float, work: PassTime) -> PassTime:
    """Return `work`, with the time for which the device waits for the host."""
    return PassTime(compute=work.compute, dispatch=max(0.0, host_s - work.total), mp=work.mp)
