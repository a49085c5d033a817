"""Compare recipes/transformer/multi30k.toml with Hugging Face's MarianMTModel on two ranks (extras `train`, `bench`).

    python benchmarks/multi30k.py [--data DIR] [--steps N] [--rounds N]
    python benchmarks/multi30k.py --data DIR --whole DIRECTORY --source TEST.en --reference TEST.fr

DIR has Multi30K as written by `tlaunch data preprocess`; without it, the packaged sample is used. The first command
times some steps of both programs in turn, each on two processes with one thread: `tlaunch run`, and a loop over the
peer with DistributedDataParallel and torch.optim.Adam. The peer gets the same batches, with the same split over two
ranks. Exits with 1 if tlaunch takes more than 0.6 of the peer's time.

The second command trains the peer in DIRECTORY as long as the recipe does, and resumes there when it is run again. It
averages the weights of the steps that `tlaunch ckpt merge --average 10` averages, translates with `generate`, and
prints scores like `tlaunch evaluate`.
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
RANKS, WARM_UP, AVERAGED, BEAM = 2, 5, 10, 5
SAVE_EVERY_STEPS = 120  # as the recipe


def main() -> int:
    options = _options()
    if options.rank_of_peer:
        _train_peer(options)
        return 0
    if options.whole:
        options.whole.mkdir(parents=True, exist_ok=True)
        _start_peer(options, options.whole)
        _score_peer(options)
        return 0
    checks = Checks()
    rows = [{"tlaunch": _ours_s(options), "marian": _peer_s(options)} for _ in range(options.rounds)]
    for name in rows[0]:
        checks.tell(f"{name}: seconds of a step, {RANKS} ranks", min(row[name] for row in rows))
    checks.tell("tlaunch / marian, seconds of a step", median_ratio(rows, "tlaunch", "marian"), Bound(0.6, 0.5))
    return 1 if checks.failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="pairs (default: the packaged sample)")
    parser.add_argument("--steps", type=int, default=40, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", type=Path, metavar="DIRECTORY", help="train the peer to the end there")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--rank-of-peer", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.whole and not (options.source and options.reference):
        parser.error("--whole scores the peer at the end, and needs --source and --reference")
    if options.steps <= WARM_UP:
        parser.error(f"--steps is {options.steps}, and the first {WARM_UP} are not counted")
    return options


def _paths(options: argparse.Namespace) -> tuple[Path, ...]:
    return () if options.data is None else (options.data,)


def _data(options: argparse.Namespace) -> list[str | Path]:
    return [] if options.data is None else ["--data", options.data]


def _settings(*more: str) -> TransformerSettings:
    return load_settings(TransformerSettings, RECIPE, ["train.device=cpu", *more])


def _ours_s(options: argparse.Namespace) -> float:
    """Return the median time of a step of ours."""
    with tempfile.TemporaryDirectory() as runs:
        settings = [f"train.steps={options.steps}", "checkpoint.enabled=false", "train.translations=0"]
        words = [word for each in settings for word in ("--set", each)]
        command = [BIN / "tlaunch", "run", "--devices", str(RANKS), "--runs-dir", runs, "--config", RECIPE]
        subprocess.run([*command, *_data(options), *words], check=True, stdout=subprocess.DEVNULL)
        lines = (Path(runs) / "latest" / "metrics.jsonl").read_text().splitlines()
    steps = [record["step_s"] for record in map(json.loads, lines) if "step_s" in record]
    return statistics.median(steps[WARM_UP:])


def _peer_s(options: argparse.Namespace) -> float:
    with tempfile.TemporaryDirectory() as directory:
        _start_peer(options, Path(directory))
        return statistics.median(json.loads((Path(directory) / "seconds.json").read_text())[WARM_UP:])


def _start_peer(options: argparse.Namespace, directory: Path) -> None:
    """Train the peer in processes of its own."""
    steps = [] if options.whole else ["--steps", str(options.steps)]
    own = [sys.executable, __file__, *_data(options), "--rank-of-peer", directory, *steps]
    own += ["--whole", directory] if options.whole else []
    command = [BIN / "torchrun", "--nproc-per-node", str(RANKS), "--no-python", *own]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def _train_peer(options: argparse.Namespace) -> None:
    """Train on one rank, from what an earlier call has kept; keep the seconds of all steps, and a state each some steps."""
    keep_freed_memory()  # as ours does: it is no part of the comparison
    torch.set_num_threads(1)
    directory: Path = options.rank_of_peer
    settings = _settings(*([] if options.whole else [f"train.steps={options.steps}"]))
    with open_world(this_place(micro_batches=1), CPU) as world:
        corpus = open_corpus(settings, world, _paths(options))
        torch.manual_seed(settings.train.seed)
        model = marian_model(settings)
        optimizer = torch.optim.Adam(
            model.parameters(), betas=(settings.train.beta1, settings.train.beta2), eps=settings.train.epsilon
        )
        state: dict[str, Any] = {"step": 0, "seconds": []}
        if (directory / "state.pt").exists():
            state = torch.load(directory / "state.pt", weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        torch.manual_seed(settings.train.seed + 1 + world.place.global_rank + state["step"])
        seconds = state["seconds"]
        parallel = nn.parallel.DistributedDataParallel(model)
        for step, last_step, batch, count in _batches(corpus, settings, world, state["step"] + 1):
            began_s = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = learning_rate_at(step, settings.train, last_step)
            loss = _step(parallel, optimizer, batch, count, settings.train.label_smoothing)
            seconds.append(time.monotonic() - began_s)
            if world.is_first and step % 20 == 0:
                print(f"marian, step {step}: loss {loss:.4f}, {seconds[-1]:.3f} s", flush=True)
            if options.whole and world.is_first and (step % SAVE_EVERY_STEPS == 0 or step == last_step):
                _keep(directory, step, model, optimizer, seconds)
        if world.is_first:
            (directory / "seconds.json").write_text(json.dumps(seconds))


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
    torch.save(model.state_dict(), directory / f"weights-{step}.pt")
    kept = sorted(directory.glob("weights-*.pt"), key=lambda path: int(path.stem.partition("-")[2]))
    for path in kept[:-AVERAGED]:
        path.unlink()


def _score_peer(options: argparse.Namespace) -> None:
    """Translate the test sentences by the mean of the last weights, and print the scores."""
    settings = _settings()
    kept = [torch.load(path, weights_only=True) for path in options.whole.glob("weights-*.pt")]
    mean = {name: sum(each[name].double() for each in kept) / len(kept) for name in kept[0]}
    model = marian_model(settings).eval()
    model.load_state_dict({name: value.to(kept[0][name].dtype) for name, value in mean.items()})
    with open_world(this_place(micro_batches=1), CPU) as alone:
        tokenizer = open_corpus(settings, alone, _paths(options)).tokenizer
    sources, references = (list(read_lines(path)) for path in (options.source, options.reference))
    began_s = time.monotonic()
    encoded = [[*ids[: settings.data.source_length - 1], END] for ids in tokenizer.encode(sources)]
    translations = [""] * len(sources)
    order = sorted(range(len(sources)), key=lambda place: -len(encoded[place]))
    for places in (order[start : start + 64] for start in range(0, len(order), 64)):
        for place, ids in zip(places, _generated(model, [encoded[each] for each in places], settings), strict=True):
            translations[place] = tokenizer.decode(ids)
    print(f"mean of {len(kept)} weights, beam {BEAM}, {time.monotonic() - began_s:.0f} s")
    scores = all_scores(translations, references, "fr")
    for name, found in (("BLEU", scores.bleu), ("BLEU, tokenized", scores.bleu_tokenized), ("chrF", scores.chrf)):
        print(f"{name:<16}{found.score:7.2f}  {found.signature}")
    seconds = json.loads((options.whole / "seconds.json").read_text())
    print(f"{len(seconds)} steps took {sum(seconds) / 60:.1f} min")


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
