"""Train examples/mindspore/resnet.py's network on the very batches and weights of the bundled ResNet-50.

mindspore_resnet.py prepare IMAGES STEPS FILE     write them, with a Python that has torch
mindspore_resnet.py train FILE                    as a rank, with a Python that has MindSpore: print each step's mean loss
"""

import json
import sys
from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples" / "mindspore"
SEED = 1  # the recipe's own
BATCH_SIZE = 32
# So small that weights stay as they are: from the second step on, float32 and float64 of one program differ by 1e-3 even at 1e-6.
LEARNING_RATE = 1e-12
# A batch norm's parameters and statistics, as MindSpore calls them.
NAMES = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}


def prepare(images: str, steps: int, file: str) -> None:
    import torch

    from launcher.corpus.images import find_images
    from launcher.trainer.data.images import ImageOrder, ImageSet, ImageShape, Shard, training_batches
    from launcher.trainer.model.resnet import ResNet50, set_initial_weights

    model = ResNet50(10)
    set_initial_weights(model, SEED)
    arrays = {f"weight.{name}": tensor.numpy() for name, tensor in model.state_dict().items()}
    train = ImageSet(find_images(Path(images)).train)
    order = ImageOrder(len(train), BATCH_SIZE, seed=SEED)
    batches = training_batches(
        train, order, last_step=steps, seed=SEED, shard=Shard(1, 0), shape=ImageShape(32, torch.float32), first_step=1
    )
    for batch in batches:
        arrays[f"image.{batch.step}"] = batch.image_BCHW.numpy()
        arrays[f"label.{batch.step}"] = batch.label_B.numpy().astype(np.int32)
    np.savez(file, **arrays)


def train(file: str) -> None:
    import mindspore as ms
    from mindspore import Tensor, nn, ops
    from mindspore.communication import get_group_size, get_rank, init

    sys.path.insert(0, str(EXAMPLES))
    from resnet import ResNet50, step_of

    init()
    rank, size = get_rank(), get_group_size()
    arrays = np.load(file)
    network = ResNet50()
    cells = dict(network.cells_and_names())
    for name in arrays.files:
        path, _, kind = name.removeprefix("weight.").rpartition(".")
        if name.startswith("weight.") and kind != "num_batches_tracked":
            cell = cells[path]
            parameter = getattr(cell, NAMES[kind] if isinstance(cell, nn.BatchNorm2d) else kind)
            parameter.set_data(Tensor(arrays[name]))
    network.set_train()
    step = ms.jit(step_of(network, LEARNING_RATE, momentum=0.9))
    total = ops.AllReduce()
    for number in range(1, sum(name.startswith("image.") for name in arrays.files) + 1):
        image, label = (arrays[f"{kind}.{number}"][rank::size] for kind in ("image", "label"))
        loss = step(Tensor(image), Tensor(label[:, None]))
        print(json.dumps({"step": number, "loss": float(total(loss).asnumpy()) / size}), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "prepare":
        prepare(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        train(sys.argv[2])
