"""Layers -> pipeline stages, over the encoder and the decoder as one stack.

Worked example, 3 encoder and 3 decoder layers on pp=4: the stack e0 e1 e2 d0 d1 d2 is cut into 2+2+1+1, so the stages
hold (e0 e1) (e2 d0) (d1) (d2). Earlier stages take the remainder, because the last one also computes the output head.
"""

from __future__ import annotations

from itertools import pairwise

from launcher.core.errors import RefusedLayoutError
from launcher.core.frozen import frozen


@frozen
class Stage:
    index: int
    count: int
    encoder_layers: range  # global indices of the encoder layers here, possibly none
    decoder_layers: range
    closes_encoder: bool  # applies the encoder's final norm after its layers

    @property
    def is_first(self) -> bool:
        """Holds the embeddings of both languages."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Holds the decoder's final norm, the output head and the loss."""
        return self.index == self.count - 1


def split_into_stages(encoder_layers: int, decoder_layers: int, pp: int) -> tuple[Stage, ...]:
    """Cut the stack into `pp` contiguous stages that differ by at most one layer.

    Raises:
        RefusedLayoutError: there are fewer layers than stages.
    """
    layer_count = encoder_layers + decoder_layers
    if pp > layer_count:
        raise RefusedLayoutError(
            f"pp = {pp} stages cannot all get a layer: the model has {encoder_layers} encoder + "
            f"{decoder_layers} decoder = {layer_count} layers",
            hint=f"--pp {layer_count} at most, or more layers (--set model.encoder_layers=N)",
        )
    size, remainder = divmod(layer_count, pp)
    cuts = [index * size + min(index, remainder) for index in range(pp + 1)]
    # The final norm of the encoder follows its last layer, or stands on the first stage where there is no layer.
    closing = next(index for index in range(pp) if cuts[index + 1] >= encoder_layers)
    return tuple(
        Stage(
            index=index,
            count=pp,
            encoder_layers=range(min(first, encoder_layers), min(last, encoder_layers)),
            decoder_layers=range(max(first - encoder_layers, 0), max(last - encoder_layers, 0)),
            closes_encoder=index == closing,
        )
        for index, (first, last) in enumerate(pairwise(cuts))
    )
