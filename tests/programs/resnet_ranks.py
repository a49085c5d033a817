"""Train ResNet-50 on several ranks in every mode, and in a plain loop in one process: the same in float64.

    resnet_ranks.py DIRECTORY [share | ways | large]

What is compared after one step: the loss, the gradient of every parameter, the running statistics, and loss and accuracy on
the test images. Where norms are local the loop normalises each rank's images apart. Then each way of saving: the checkpoint of
step 1 is damaged where the way has copies, gone on from on another number of ranks in another mode, merged, and loaded in one
process. "share" is a part of it by a network of fewer and narrower blocks of each kind, "ways" only the ways of saving, and "large" one
step on images of 224 pixels. Exit 0 when all are equal.

More steps would compare rounding: batch norms of so few images make it a hundred times larger in each.
"""

import shutil
import sys
from functools import partial
from pathlib import Path

import torch
import torch._dynamo  # else each rank imports it where it makes an optimizer of torch
from ranks import fork_ranks
from recipe_ranks import difference, merged, model_of, train_on_ranks
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional

from launcher.checkpoint.file_layout import INTEGRATED, ONE_COPY, OWNED, SLICES
from launcher.core.frozen import frozen
from launcher.corpus.images import find_images
from launcher.recipes.catalog import recipe_named
from launcher.trainer.data.images import ImageOrder, ImageSet, ImageShape, Shard, training_batches, validation_batches
from launcher.trainer.model import resnet
from launcher.trainer.model.resnet import initial_weight, resnet50, set_initial_weights
from launcher.trainer.programs.resnet50 import train

sys.path.append(str(Path(__file__).parents[2]))
from tests.images import write_images

RECIPE = recipe_named("resnet50")
BATCH, RATE, SEED = 16, 0.01, 1
COUNTS = (9, 3, 12, 2, 6, 7)  # images of each file: two batches, and a test set that no number of ranks divides
TOLERANCE = 1e-9
COMMON = ("train.precision=float64", f"train.batch_size={BATCH}", f"train.learning_rate={RATE}", f"train.seed={SEED}")
STATISTICS = ("running_mean", "running_var")
COUNT = "num_batches_tracked"

SYNCHRONISED = ("model.batch_norm=synchronised",)
DATA_PARALLEL = ("parallel.mode=data_parallel", *SYNCHRONISED)
AUTO = ("parallel.mode=auto_parallel", *SYNCHRONISED)
GIVEN = ("parallel.mode=semi_auto_parallel", *SYNCHRONISED)
HYBRID = ("parallel.mode=hybrid_parallel", "model.batch_norm=local")
INPUTS = "strategies.layer1.0.conv1=[[1, 2, 1, 1], [1, 2, 1, 1]]"
OUTPUTS = "strategies.layer1.0.conv1=[[1, 1, 1, 1], [4, 1, 1, 1]]"
IMAGES = "strategies.conv1=[[2, 1, 1, 1], [1, 1, 1, 1]]"


@frozen
class Case:
    settings: tuple[str, ...]
    ranks: int
    copies: int = 1  # data-parallel ones
    # The images that are normalised together, of each micro batch those of each rank where norms are local.
    rounds: tuple[tuple[tuple[int, ...], ...], ...] = ((tuple(range(BATCH)),),)

    @property
    def micro_batches(self):
        return len(self.rounds)


def rows(*remainders, divisor):
    """Return the numbers of the images that leave one of these remainders."""
    return tuple(row for row in range(BATCH) if row % divisor in remainders)


HALVES = (rows(0, divisor=2), rows(1, divisor=2))  # of each of two ranks
CASES = {
    "alone": Case(("parallel.mode=stand_alone", *SYNCHRONISED), 1),
    "data parallel, 2 ranks": Case(DATA_PARALLEL, 2, 2),
    "data parallel, 4 ranks": Case(DATA_PARALLEL, 4, 4),
    "data parallel, 4 ranks by gloo": Case((*DATA_PARALLEL, "parallel.transport=backend"), 4, 4),
    # The recipe refuses this layout. Local norms of two images would leave rounding to compare.
    "data parallel, 2 ranks, 2 micro batches": Case(
        DATA_PARALLEL, 2, 2, ((rows(0, 1, divisor=4),), (rows(2, 3, divisor=4),))
    ),
    "data parallel, 2 ranks, local norms": Case(("model.batch_norm=local",), 2, 2, rounds=(HALVES,)),
    "searched, 1 rank": Case(AUTO, 1),
    "searched, 2 ranks": Case(AUTO, 2),
    "searched, 4 ranks": Case(AUTO, 4),
    "propagated, 2 ranks": Case((*AUTO, "parallel.search_mode=sharding_propagation", IMAGES), 2),
    "given input channels, 2 ranks": Case((*GIVEN, INPUTS), 2),
    "given output channels, 4 ranks": Case((*GIVEN, OUTPUTS), 4),
    "hybrid, 2 copies of 2 ranks": Case((*HYBRID, INPUTS), 4, 2, rounds=(HALVES,)),
    "hybrid, 2 copies of 1 rank": Case(HYBRID, 2, 2, rounds=(HALVES,)),
}
SHARE = ("data parallel, 2 ranks", "hybrid, 2 copies of 2 ranks")
# Blocks and width of each stage: downsampled without a stride, and with one, or not.
SMALL = ((2, 32), (1, 64), (2, 64), (1, 128))


# --- what is expected: a plain loop ---


def expected(data, case, steps, size, output):
    """Train as a plain loop; the file gets the model after it, and the gradients of its first step."""
    images = ImageSet(find_images(data).train)
    shape = ImageShape(size, torch.float64)
    model = resnet50(10).double()
    set_initial_weights(model, SEED)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    order = ImageOrder(len(images), BATCH, seed=SEED)
    lines, gradients = [], {}
    for batch in training_batches(images, order, last_step=steps, seed=SEED, shard=Shard(), shape=shape):
        optimizer.zero_grad()
        lines.append(f"loss is {_backward(model, batch, case.rounds):.4f}")
        optimizer.step()
        if batch.step == 1:
            gradients = {f"gradient/{name}": each.grad.clone() for name, each in model.named_parameters()}
    loss, accuracy = _validated(model, ImageSet((find_images(data).test,)), shape)
    lines.append(f"validation loss is {loss:.6f}, top-1 accuracy is {accuracy:.2%}")
    for name, buffer in model.named_buffers():
        if name.endswith(COUNT):
            buffer.fill_(steps)
    save_file({**model.state_dict(), **gradients}, output, {"lines": "\n".join(lines)})


def _backward(model, batch, rounds):
    """Go back from the loss of all parts; those of a round begin with the same running statistics, and leave their mean."""
    total = 0.0
    for parts in rounds:
        before = {name: buffer.clone() for name, buffer in model.named_buffers()}
        sums = {name: torch.zeros_like(buffer) for name, buffer in before.items()}
        for part in parts:
            for name, buffer in model.named_buffers():
                buffer.copy_(before[name])
            own = list(part)
            loss = functional.cross_entropy(model(batch.image_BCHW[own]), batch.label_B[own], reduction="sum")
            loss = loss / batch.count
            loss.backward()
            total += loss.item()
            for name, buffer in model.named_buffers():
                sums[name] += buffer
        for name, buffer in model.named_buffers():
            buffer.copy_(sums[name] / len(parts))
    return total


@torch.no_grad()
def _validated(model, test, shape):
    """Return the mean loss of the test images, and the share whose label has the largest logit."""
    model.eval()
    [batch] = validation_batches(test, len(test), shard=Shard(), shape=shape)
    logits_BK = model(batch.image_BCHW)
    right_B = logits_BK.argmax(dim=1) == batch.label_B
    return float(functional.cross_entropy(logits_BK, batch.label_B)), float(right_B.double().mean())


# --- what the recipe does ---


def on_ranks(name, directory, data, case, settings=(), *, resume=None):
    given = RECIPE.load(None, [*COMMON, *case.settings, *settings])
    axes = {"ranks": case.ranks, "copies": case.copies, "micro_batches": case.micro_batches}
    train_on_ranks(name, directory, train, given, data=(data,), resume=resume, **axes)


def gradients_of(model):
    """Return the gradients by which the first step has made this model of the initial one."""
    return {
        f"gradient/{name}": (initial_weight(name, tensor.shape, SEED).double() - tensor) / RATE
        for name, tensor in model.items()
        if not name.endswith((*STATISTICS, COUNT))
    }


class Proof:
    """Compares trainings with those of plain loops, which are made once each."""

    def __init__(self, directory, size=32):
        self._directory, self._size = directory, size
        self.data = directory / "data"
        write_images(self.data, COUNTS)
        self._expected = {}

    def expected(self, case, steps):
        """Return model and gradients of the plain loop, and its lines."""
        key = (case.rounds, steps)
        if key not in self._expected:
            path = self._directory / f"expected{len(self._expected)}.safetensors"
            work = partial(expected, self.data, case, steps, self._size, path)
            fork_ranks("a plain loop", work)
            self._expected[key] = path
        with safe_open(self._expected[key], "pt") as file:
            return load_file(self._expected[key]), file.metadata()["lines"].split("\n")

    def one_step(self, name):
        case, where = CASES[name], self._directory / "case"
        on_ranks(name, where, self.data, case, ["train.steps=1", f"data.image_size={self._size}"])
        wanted, lines = self.expected(case, 1)
        log = (where / "log0").read_text()
        assert all(line in log for line in lines), (name, lines, log)
        model = model_of(where)
        off = difference({**model, **gradients_of(model)}, wanted)
        print(f"{name}: {off:.1e}", flush=True)
        assert off <= TOLERANCE, name
        shutil.rmtree(where)

    def saved_and_recovered(self, way, case, damaged, other):
        """Save after each of two steps, damage a copy of the first, and go on from it as `other`; merge the second."""
        name, where = f"{way}, saved by {case}", self._directory / "saved"
        saving = ["train.steps=2", "checkpoint.every_steps=1", f"checkpoint.files={way}"]
        on_ranks(name, where, self.data, CASES[case], saving)
        wanted, _ = self.expected(CASES[case], 2)
        wanted = {each: tensor for each, tensor in wanted.items() if not each.startswith("gradient/")}
        first, second = (where / "checkpoints" / f"step-{step}" for step in (1, 2))
        if damaged is not None:
            (first / damaged).write_bytes(b"")
        resumed = self._directory / "resumed"
        on_ranks(f"{name}, gone on from by {other}", resumed, self.data, CASES[other], ["train.steps=2"], resume=first)
        assert "after step 1" in (resumed / "log0").read_text(), name
        made = merged(second, self._directory / "merged")
        found = {"trained": model_of(where), "resumed": model_of(resumed), "merged": made}
        off = {each: difference(tensors, wanted) for each, tensors in found.items()}
        print(f"{name}, gone on from by {other}: {off}", flush=True)
        assert max(off.values()) <= TOLERANCE, name
        assert difference(made, found["trained"]) == 0, name
        fork_ranks("one process", partial(_loaded, made, found["trained"]))
        for directory in (where, resumed, self._directory / "merged"):
            shutil.rmtree(directory)


def _loaded(merged, trained):
    """Load both into the model: it has the same state, and computes the same."""
    models = [resnet50(10).double().eval() for _ in range(2)]
    for model, tensors in zip(models, (merged, trained), strict=True):
        model.load_state_dict(tensors)
    states = [model.state_dict() for model in models]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    image_BCHW = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        assert torch.equal(*(model(image_BCHW) for model in models))


# Each way, the layout that saves, the file that is damaged, and the layout that goes on.
WAYS_SAVED = (
    (OWNED, "data parallel, 2 ranks", None, "given output channels, 4 ranks"),
    (OWNED, "given input channels, 2 ranks", None, "data parallel, 4 ranks"),
    (SLICES, "data parallel, 2 ranks", "rank1.safetensors", "searched, 1 rank"),
    (SLICES, "given input channels, 2 ranks", None, "alone"),
    (SLICES, "hybrid, 2 copies of 2 ranks", "rank2.safetensors", "data parallel, 2 ranks, local norms"),
    (ONE_COPY, "given output channels, 4 ranks", None, "data parallel, 2 ranks"),
    (INTEGRATED, "searched, 2 ranks", None, "data parallel, 4 ranks by gloo"),
)


def main(directory, chosen):
    if chosen == "large":
        proof = Proof(directory, 224)
        for name in ("data parallel, 2 ranks", "searched, 2 ranks"):
            proof.one_step(name)
        return
    if chosen == "share":
        resnet.STAGES = SMALL
    proof = Proof(directory)
    modes, ways = {"share": (SHARE, WAYS_SAVED[:1]), "ways": ((), WAYS_SAVED), "all": (CASES, WAYS_SAVED)}[chosen]
    for name in modes:
        proof.one_step(name)
    for saved in ways:
        proof.saved_and_recovered(*saved)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "all")
