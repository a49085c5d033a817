"""Turns what a person says layer by layer, as MindSpore's Transformer asks for it, into settings of `parallel`.

`lambda_func(network, layer_id, offset, parallel_config, layers)` is called for each layer. It sets `network.pipeline_stage`, and may
call `network.recompute()` and `network.set_comm_fusion(number)`. The tutorial's own,

    pipeline_stage = int(max((layer_id + offset) / layers_per_stage, 1))    layers_per_stage = total layers // stages

gives stage 0 no layer, only the embeddings: with 3 + 3 layers on 2 stages it has all of them on stage 1. It is taken as written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen

LambdaFunc = Callable[..., object]  # called with a `Layer`, and the rest by keywords, as MindSpore does


class Layer:
    """A layer as `lambda_func` sees it, its first argument."""

    def __init__(self) -> None:
        self.pipeline_stage: int | None = None
        self.is_recomputed = False
        self.comm_fusion: int | None = None

    def recompute(self, mode: bool = True) -> None:
        """Have backward compute the activations of this layer again."""
        self.is_recomputed = mode

    def set_comm_fusion(self, number: int) -> None:
        """Have its gradients summed together with those of layers of the same number."""
        self.comm_fusion = number


@frozen
class LayerSettings:
    """Values for the settings of `parallel` of these names."""

    stages: tuple[int, ...]
    recompute_layers: tuple[int, ...]
    gradient_groups: int | None  # None: no layer has been given a number of fusion


def settings_by(
    lambda_func: LambdaFunc, encoder_layers: int, decoder_layers: int, parallel_config: Any, pp: int
) -> LayerSettings:
    """Return what `lambda_func` says of the layers of a model on `pp` pipeline stages.

    It gets `layer_id` from 0 in the encoder and in the decoder, `offset` 0 and `encoder_layers`, and `layers` as many as there are
    in the one or the other. `parallel_config` is handed on to it. Stages that it sets for no layer are cut by cost. Numbers of
    fusion become as many groups of gradients, which this program makes of about equal size.

    Raises:
        RefusedLayoutError: the stages do not fit (`layers_per_stage`), or are set for some layers only.
    """
    layers = [Layer() for _ in range(encoder_layers + decoder_layers)]
    for offset, count in ((0, encoder_layers), (encoder_layers, decoder_layers)):
        for layer_id in range(count):
            lambda_func(
                layers[offset + layer_id],
                layer_id=layer_id,
                offset=offset,
                parallel_config=parallel_config,
                layers=count,
            )
    chosen = [layer.pipeline_stage for layer in layers if layer.pipeline_stage is not None]
    if chosen and len(chosen) < len(layers):
        missing = next(number for number, layer in enumerate(layers) if layer.pipeline_stage is None)
        raise RefusedLayoutError(
            f"lambda_func sets pipeline_stage for {len(chosen)} of {len(layers)} layers, and not for layer {missing}",
            hint="set it for all of them, or for none: cut by cost",
        )
    return LayerSettings(
        stages=layers_per_stage(chosen, pp) if chosen else (),
        recompute_layers=tuple(number for number, layer in enumerate(layers) if layer.is_recomputed),
        gradient_groups=len({layer.comm_fusion for layer in layers} - {None}) or None,
    )


def layers_per_stage(stage_of_layer: Sequence[int], pp: int) -> tuple[int, ...]:
    """Return how many layers each of `pp` stages holds, `parallel.stages`, from the stage of each, the encoder's layers first.

    >>> layers_per_stage([0, 0, 2, 2, 2], 3)
    (2, 0, 3)

    Raises:
        RefusedLayoutError: there is no stage of that number, or a layer stands on a stage before that of the layer before it.
    """
    for number, stage in enumerate(stage_of_layer):
        if not 0 <= stage < pp:
            raise RefusedLayoutError(
                f"layer {number} is given to stage {stage}, but pp = {pp} stages are numbered from 0 to {pp - 1}",
                hint=f"--pp {stage + 1}, or another stage for it" if stage > 0 else "a number of 0 or more",
            )
        if number and stage < stage_of_layer[number - 1]:
            raise RefusedLayoutError(
                f"layer {number} is given to stage {stage}, and the layer before it to stage {stage_of_layer[number - 1]}",
                hint="layers follow one another along the stages, the decoder's after the encoder's",
            )
    return tuple(stage_of_layer.count(stage) for stage in range(pp))
