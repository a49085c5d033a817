"""The bytes of the tensors that an optimizer of the trainer holds on a rank."""


def bytes_held(optimizer):
    """Of weights (in memory that ranks may share), gradients with buffers, and state."""
    held = {
        kind: sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors}.values())
        for kind, tensors in optimizer.held.items()
    }
    return {"weights": held["weights"], "gradients": held["gradients"], "state": held["moments"]}
