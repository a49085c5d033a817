"""The bytes of the tensors that an optimizer of the trainer holds on a rank."""

from launcher.trainer.optimizer.gradient_shards import GradientShards
from launcher.trainer.optimizer.gradients import SeparateGradients


def bytes_held(optimizer):
    """Of weights (in memory that ranks may share), gradients with buffers, and state."""
    gradients = optimizer._gradients
    if isinstance(gradients, SeparateGradients):
        held = [parameter.grad for parameter in gradients._parameters.values()]
    elif isinstance(gradients, GradientShards):
        held = [gradients._own, *gradients._full.values()]
    else:
        held = [gradients.flat, gradients._own, gradients._received]
    distinct = {tensor.data_ptr(): tensor.nbytes for tensor in held if tensor is not None}
    state = [*optimizer._state, optimizer._master]
    return {
        "weights": optimizer._parameters.nbytes,
        "gradients": sum(distinct.values()),
        "state": sum(values.nbytes for values in state if values is not None),
    }
