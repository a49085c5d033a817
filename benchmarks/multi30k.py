"""Train recipes/transformer/multi30k.toml and Hugging Face's MarianMTModel for as many steps, and compare time and BLEU.

    python benchmarks/multi30k.py [--steps N] [--data DIR] [--directory DIR] [--source TEST.en --reference TEST.fr]

--data is Multi30k as `tlaunch data preprocess` writes it; the default is the packaged sample. Both programs train on two
processes with one thread each: `tlaunch run`, and a loop over the peer with DistributedDataParallel and torch.optim.Adam.
Both have the same tokenizer, batches, split over the ranks, loss and learning rate, and neither validates. They train in
turns, so that other programs on this machine slow down both. Exits with 1 if tlaunch takes more than 0.6 of the peer's
time.

With --directory, the models are kept there, and a second call goes on where the first one was interrupted. With --source
and --reference, the script translates with the weights of the last step and a beam of 5, each program with its own
search, and exits with 1 if tlaunch's BLEU score is more than 0.5 lower. Needs the extras `train` and `bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from common.checks import Bound, Checks, median_ratio
from common.processes import BIN
from torch import Tensor, nn
from torch.nn import functional
from training.peers import marian_model

from launcher.corpus.text_files import read_lines
from launcher.mesh.coordinates import coordinate_of
from launcher.recipes.load import load_settings
from launcher.recipes.transformer.transformer_settings import TransformerSettings
from launcher.trainer.data.batches import CPU, global_batches, own_micro_batches
from launcher.trainer.data.corpus import Corpus, open_corpus
from launcher.trainer.decode.score import all_scores
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.model.transformer import END, PAD, Batch
from launcher.trainer.parallel.place import this_place
from launcher.trainer.parallel.world import World, open_world
from launcher.trainer.programs.transformer import learning_rate_at

RECIPE = "recipes/transformer/multi30k.toml"
RANKS, WARM_UP, BEAM = 2, 5, 5
TURN_STEPS = 120  # also between checkpoints, as in the recipe


def main() -> int:
    options = _options()
    if options.rank_of_peer:
        _train_peer(options)
        return 0
    if options.directory:
        return _compare(options, options.directory)
    with tempfile.TemporaryDirectory() as directory:
        return _compare(options, Path(directory))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="pairs (default: the packaged sample)")
    parser.add_argument("--steps", type=int, default=60, help="that each program trains for")
    parser.add_argument("--directory", type=Path, help="for models and times (default: a temporary one)")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--rank-of-peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if (options.source is None) != (options.reference is None):
        parser.error("--source and --reference belong together")
    return options


def _compare(options: argparse.Namespace, directory: Path) -> int:
    """Train what is left to train; print the time and, with test sentences, the scores of both."""
    ours, peer, record = directory / "tlaunch", directory / "marian", directory / "turns.json"
    peer.mkdir(parents=True, exist_ok=True)
    turns: dict[str, dict[str, float]] = json.loads(record.read_text()) if record.exists() else {}
    length = min(TURN_STEPS, max(WARM_UP + 1, options.steps // 3))
    for first, last in pairwise([*range(0, options.steps, length), options.steps]):
        if str(last) in turns:
            continue
        steps = range(min(first + WARM_UP, last - 1), last)
        _start_ours(options, ours, last)
        _start_peer(options, peer, last)
        seconds = {"tlaunch": _ours_s(ours), "marian": _peer_s(peer)}
        turns[str(last)] = {name: statistics.median(each[step] for step in steps) for name, each in seconds.items()}
        record.write_text(json.dumps(turns))
        print(
            f"step {last}: " + ", ".join(f"{name} {each:.3f} s" for name, each in turns[str(last)].items()), flush=True
        )
    checks = Checks()
    for name, each in {"tlaunch": _ours_s(ours), "marian": _peer_s(peer)}.items():
        checks.tell(f"{name}: seconds of a step, {RANKS} ranks", statistics.median(each))
        checks.tell(f"{name}: minutes of all {len(each)} steps", sum(each) / 60)
    rows = list(turns.values())
    checks.tell("tlaunch / marian, seconds of a step", median_ratio(rows, "tlaunch", "marian"), Bound(0.6, 0.5))
    if options.source:
        found = _score_ours(options, ours) - _score_peer(options, peer)
        checks.tell("BLEU of tlaunch, less marian's", found, least=-0.5)
    return 1 if checks.failed else 0


def _data(options: argparse.Namespace) -> list[str | Path]:
    return [] if options.data is None else ["--data", options.data]


def _test(options: argparse.Namespace) -> list[str | Path]:
    return ["--source", options.source, "--reference", options.reference]


def _open_corpus(options: argparse.Namespace, settings: TransformerSettings, world: World) -> Corpus:
    return open_corpus(settings, world, () if options.data is None else (options.data,))


def _settings(*more: str) -> TransformerSettings:
    return load_settings(TransformerSettings, RECIPE, ["train.device=cpu", *more])


def _start_ours(options: argparse.Namespace, directory: Path, last: int) -> None:
    """Train with `tlaunch run` until step `last`, from the newest checkpoint."""
    settings = [f"train.steps={last}", "train.translations=0", "train.validate_every=0", "checkpoint.every_minutes=0"]
    command: list[str | Path] = [
        BIN / "tlaunch",
        "run",
        "--devices",
        str(RANKS),
        "--runs-dir",
        directory / "runs",
        "--",
    ]
    command.extend([sys.executable, "-m", "launcher.trainer", "--config", RECIPE, *_data(options)])
    command.extend(
        ["--checkpoints", directory / "checkpoints", *(word for each in settings for word in ("--set", each))]
    )
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _ours_s(directory: Path) -> list[float]:
    """Return the seconds of each step, over all runs."""
    seconds = {}
    for file in sorted((directory / "runs").glob("*/metrics.jsonl")):
        for record in map(json.loads, file.read_text().splitlines()):
            if "step_s" in record:
                seconds[record["step"]] = record["step_s"]
    return [seconds[step] for step in sorted(seconds)]


def _start_peer(options: argparse.Namespace, directory: Path, last: int) -> None:
    """Train the peer in processes of its own until step `last`."""
    own = [sys.executable, __file__, *_data(options), "--rank-of-peer", directory, "--steps", str(last)]
    command = [BIN / "torchrun", "--nproc-per-node", str(RANKS), "--no-python", *own]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


def _peer_s(directory: Path) -> list[float]:
    seconds: list[float] = torch.load(directory / "state.pt", weights_only=True)["seconds"]
    return seconds


def _train_peer(options: argparse.Namespace) -> None:
    """Train on one rank until step --steps, from the state that an earlier call has left."""
    keep_freed_memory()  # as ours does: it is no part of the comparison
    torch.set_num_threads(1)
    directory: Path = options.rank_of_peer
    settings = _settings(f"train.steps={options.steps}")
    train = settings.train
    with open_world(this_place(micro_batches=1), CPU) as world:
        corpus = _open_corpus(options, settings, world)
        torch.manual_seed(train.seed)
        model = marian_model(settings)
        optimizer = torch.optim.Adam(model.parameters(), betas=(train.beta1, train.beta2), eps=train.epsilon)
        state: dict[str, Any] = {"step": 0, "seconds": []}
        if (directory / "state.pt").exists():
            state = torch.load(directory / "state.pt", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        torch.manual_seed(train.seed + 1 + world.place.global_rank + state["step"])
        seconds = state["seconds"]
        parallel = nn.parallel.DistributedDataParallel(model)
        for step, last_step, batch, count in _batches(corpus, settings, world, state["step"] + 1):
            began_s = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, train, last_step)
            _step(parallel, optimizer, batch, count, train.label_smoothing)
            seconds.append(time.monotonic() - began_s)
            if world.is_first and (step % TURN_STEPS == 0 or step == last_step):
                _keep(directory, step, model, optimizer, seconds)


def _batches(
    corpus: Corpus, settings: TransformerSettings, world: World, first_step: int
) -> Iterator[tuple[int, int, Batch, int]]:
    """Yield the number of each step and of the last one, this rank's part of the batch, and the tokens of all of it."""
    place = world.place
    for each in global_batches(corpus.train, settings.train, first_step=first_step):
        [batch] = own_micro_batches(each.examples, place.layout, coordinate_of(place.global_rank, place.layout), CPU)
        count = int(sum(each.examples.lengths()[1]))
        yield each.step, each.last_step, batch, count


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, count: int, smoothing: float) -> float:
    """Take a step; DistributedDataParallel takes the mean over ranks, so that the sum of tokens' losses counts by their number."""
    optimizer.zero_grad()
    logits_BTV = model(
        input_ids=batch.source_BS, attention_mask=batch.source_BS != PAD, decoder_input_ids=batch.target_BT, use_cache=False
    ).logits  # fmt: skip
    loss = functional.cross_entropy(
        logits_BTV.flatten(0, 1),
        batch.labels_BT.flatten(),
        ignore_index=PAD,
        label_smoothing=smoothing,
        reduction="sum",
    )
    (loss * RANKS / count).backward()
    optimizer.step()
    total = loss.detach()
    dist.all_reduce(total)
    return float(total) / count


def _keep(directory: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, seconds: list[float]) -> None:
    state = {"step": step, "seconds": seconds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, directory / "aside.pt")
    (directory / "aside.pt").rename(directory / "state.pt")


def _score_ours(options: argparse.Namespace, directory: Path) -> float:
    """Return BLEU of the newest checkpoint."""
    tested = directory / "test"
    words = [*_test(options), "--beam", str(BEAM), "-o", tested]
    command = [BIN / "tlaunch", "evaluate", directory / "checkpoints", *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return _bleu(options, "tlaunch", list(read_lines(tested)))


def _score_peer(options: argparse.Namespace, directory: Path) -> float:
    """Return BLEU of the last weights."""
    settings = _settings()
    model = marian_model(settings).eval()
    model.load_state_dict(torch.load(directory / "state.pt", weights_only=True)["model"])
    with open_world(this_place(micro_batches=1), CPU) as alone:
        tokenizer = _open_corpus(options, settings, alone).tokenizer
    sources = list(read_lines(options.source))
    encoded = [[*ids[: settings.data.source_length - 1], END] for ids in tokenizer.encode(sources)]
    translations = [""] * len(sources)
    order = sorted(range(len(sources)), key=lambda place: -len(encoded[place]))
    for places in (order[start : start + 64] for start in range(0, len(order), 64)):
        for place, ids in zip(places, _generated(model, [encoded[each] for each in places], settings), strict=True):
            translations[place] = tokenizer.decode(ids)
    return _bleu(options, "marian", translations)


def _bleu(options: argparse.Namespace, name: str, translations: Sequence[str]) -> float:
    """Print the scores of a program's translations, and return BLEU."""
    scores = all_scores(translations, list(read_lines(options.reference)), "fr")
    for metric, found in (("BLEU", scores.bleu), ("BLEU, tokenized", scores.bleu_tokenized), ("chrF", scores.chrf)):
        if found is not None:
            print(f"  {name}: {metric} {found.score:.2f}  {found.signature}", flush=True)
    return scores.bleu.score


def _generated(model: Any, sources: Sequence[Sequence[int]], settings: TransformerSettings) -> list[list[int]]:
    width = max(map(len, sources))
    source_BS: Tensor = torch.tensor([[*ids, *[PAD] * (width - len(ids))] for ids in sources])
    found_BT = model.generate(
        input_ids=source_BS, attention_mask=source_BS != PAD, num_beams=BEAM, length_penalty=1.0, early_stopping=False,
        max_length=settings.data.target_length + 1, do_sample=False,
    )  # fmt: skip
    return [[token for token in row[1:] if token not in {PAD, END}] for row in found_BT.tolist()]


if __name__ == "__main__":
    sys.exit(main())
