"""Convert per-layer settings in the style of MindSpore's Transformer into settings of `parallel`.

`lambda_func(network, layer_id, offset, parallel_config, layers)` is called for each layer. It sets
`network.pipeline_stage`, and may call `network.recompute()` and `network.set_comm_fusion(number)`. The tutorial's
function,

    pipeline_stage = int(max((layer_id + offset) / layers_per_stage, 1))    layers_per_stage = total layers // stages

gives stage 0 no layers, only the embeddings: 3 + 3 layers on 2 stages are all on stage 1. This is kept as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen

LambdaFunc = Callable[..., object]  # called with a `Layer`, and keyword arguments as in MindSpore


class Layer:
    """A model layer, passed to the user's function `lambda_func` as the first argument."""

    def __init__(self) -> None:
        self.pipeline_stage: int | None = None
        self.is_recomputed = False
        self.comm_fusion: int | None = None

    def recompute(self, mode: bool = True) -> None:
        """Recompute the activations of this layer in the backward pass."""
        self.is_recomputed = mode

    def set_comm_fusion(self, number: int) -> None:
        """Set the fusion number. The gradients of layers with the same number are summed together."""
        self.comm_fusion = number


@frozen
class LayerSettings:
    stages: tuple[int, ...]
    recompute_layers: tuple[int, ...]
    gradient_groups: int | None  # None: no layer has a fusion number


def settings_by(
    lambda_func: LambdaFunc, encoder_layers: int, decoder_layers: int, parallel_config: Any, pp: int
) -> LayerSettings:
    """Call `lambda_func` for each layer of a model on `pp` pipeline stages, and return the resulting settings.

    `layer_id` counts from 0 in the encoder and in the decoder; `offset` is 0 and `encoder_layers`, respectively;
    `layers` is the number of layers of the encoder or the decoder. `parallel_config` is passed through. If it sets no
    stages, stages are balanced by cost. Each fusion number becomes a group of gradients; groups have about equal size.
    Raises RefusedLayoutError if the stages do not fit (`layers_per_stage`), or are set only for some layers.
    """
    layers = [Layer() for _ in range(encoder_layers + decoder_layers)]
    for offset, count in ((0, encoder_layers), (encoder_layers, decoder_layers)):
        for layer_id in range(count):
            arguments = {"layer_id": layer_id, "offset": offset, "layers": count, "parallel_config": parallel_config}
            lambda_func(layers[offset + layer_id], **arguments)
    chosen = [layer.pipeline_stage for layer in layers if layer.pipeline_stage is not None]
    if chosen and len(chosen) < len(layers):
        missing = next(number for number, layer in enumerate(layers) if layer.pipeline_stage is None)
        raise RefusedLayoutError(
            f"lambda_func sets pipeline_stage for {len(chosen)} of {len(layers)} layers, but not for layer {missing}",
            hint="set pipeline_stage for all layers; to balance stages by cost, do not set pipeline_stage for any layer",
        )
    return LayerSettings(
        stages=layers_per_stage(chosen, pp) if chosen else (),
        recompute_layers=tuple(number for number, layer in enumerate(layers) if layer.is_recomputed),
        gradient_groups=len({layer.comm_fusion for layer in layers} - {None}) or None,
    )


def layers_per_stage(stage_of_layer: Sequence[int], pp: int) -> tuple[int, ...]:
    """Return the number of layers on each of `pp` stages. `stage_of_layer` has the stage of each layer, in order.

    >>> layers_per_stage([0, 0, 2, 2, 2], 3)
    (2, 0, 3)

    Raises RefusedLayoutError if a stage does not exist, or is before the previous layer's stage.
    """
    for number, stage in enumerate(stage_of_layer):
        if not 0 <= stage < pp:
            raise RefusedLayoutError(
                f"layer {number} is on stage {stage}, but pp = {pp} stages are numbered from 0 to {pp - 1}",
                hint=f"use `--pp {stage + 1}`, or another stage" if stage > 0 else "use stage number 0 or higher",
            )
        if number and stage < stage_of_layer[number - 1]:
            raise RefusedLayoutError(
                f"layer {number} is on stage {stage}, but the previous layer is on stage {stage_of_layer[number - 1]}",
                hint="assign layers to stages in ascending order: first all encoder layers, then all decoder layers",
            )
    return tuple(stage_of_layer.count(stage) for stage in range(pp))
