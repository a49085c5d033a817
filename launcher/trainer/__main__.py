"""`python -m launcher.trainer`: train the Transformer as one rank among those that the environment names."""

from __future__ import annotations

import argparse
import faulthandler
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.core import env
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.run_dir import RunDir
from launcher.recipes.load import load_transformer
from launcher.recipes.transformer.checks import check_layout
from launcher.recipes.transformer.config import TransformerRecipe
from launcher.trainer.baseline import unigram_perplexity
from launcher.trainer.corpus import Corpus, open_corpus
from launcher.trainer.data import epoch_order
from launcher.trainer.greedy import translate
from launcher.trainer.model import Transformer
from launcher.trainer.saved import gather, save_model, single_device_model
from launcher.trainer.session import Session, learning_rate_at
from launcher.trainer.world import World, choose_device, open_world, this_place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the exit code is 0, or that of the TlaunchError it ended with."""
    faulthandler.enable()
    options = _parser().parse_args(arguments)
    try:
        recipe = load_transformer(options.config, options.settings)
        place = this_place(micro_batches=recipe.train.micro_batches)
        check_layout(recipe, place.layout)
        output = _output(options.output)
        with open_world(place, choose_device(place, recipe.train.device)) as world:
            _train(recipe, world, options.data, output)
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer", description=__doc__)
    parser.add_argument("--config", help="TOML file, or a packaged one such as recipes/transformer/tutorial.toml")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, help="a directory that `tlaunch data` wrote, or one file of pairs")
    parser.add_argument("--output", type=Path, help="directory for the trained model (default: in the run directory)")
    return parser


def _output(chosen: Path | None) -> Path | None:
    """Where the model goes: decided, and checked, before hours of training."""
    run_dir = os.environ.get(env.TLAUNCH_RUN_DIR)
    output = chosen or (RunDir(Path(run_dir)).model if run_dir else None)
    if output is not None and output.exists():
        raise UsageError(f"{output} exists already, and a trained model is never overwritten", hint="--output DIR")
    return output


def _train(recipe: TransformerRecipe, world: World, data: Path | None, output: Path | None) -> None:
    corpus = open_corpus(recipe, world, data)
    session = Session(recipe, world)
    _introduce(session, corpus)
    validation_loss = _run_epochs(session, corpus)
    weights = gather(session, dict(session.model.named_parameters()))
    if weights is None:
        return
    if output is None:
        print("the model is not kept: neither --output nor a run directory says where", flush=True)
    else:
        save_model(output, weights, recipe, corpus.tokenizer, {"validation_loss": validation_loss})
        print(f"saved {output}", flush=True)
    model = single_device_model(recipe, weights, world.device)
    _show_translations(model, corpus, recipe)


def _introduce(session: Session, corpus: Corpus) -> None:
    if session.world.place.global_rank != 0:
        return
    world, layout = session.world, session.world.place.layout
    held = sum(parameter.numel() for parameter in session.model.parameters())
    print(f"data: {corpus.origin}", flush=True)
    print(f"vocabulary: {corpus.tokenizer.size} tokens of {session.recipe.model.vocabulary_size} rows", flush=True)
    print(
        f"layout: {layout} micro_batches={layout.micro_batches}, {world.place.world_size} ranks, device "
        f"{world.device}, {held} parameters on this rank",
        flush=True,
    )


def _run_epochs(session: Session, corpus: Corpus) -> float:
    """Train to the end; the last validation loss. Step numbers count within an epoch, as the tutorials' do."""
    config = session.recipe.train
    steps_per_epoch = len(corpus.train) // config.batch_size
    last_step = config.steps or config.epochs * steps_per_epoch
    for step in range(1, last_step + 1):
        epoch, step_of_epoch = divmod(step - 1, steps_per_epoch)
        if step_of_epoch == 0:
            order = epoch_order(len(corpus.train), seed=config.seed, epoch=epoch)
        first = step_of_epoch * config.batch_size
        examples = [corpus.train[index] for index in order[first : first + config.batch_size]]
        started_s = time.perf_counter()
        result = session.train_step(examples, learning_rate_at(step, config))
        if session.world.reports:
            speed = result.tokens / (time.perf_counter() - started_s)
            print(
                f"epoch: {epoch + 1} step: {step_of_epoch + 1}, loss is {result.loss:.4f}, {speed:.0f} tokens/s",
                flush=True,
            )
        if step == last_step or (config.validate_every and step % config.validate_every == 0):
            validation_loss = _validate(session, corpus)
    return validation_loss


def _validate(session: Session, corpus: Corpus) -> float:
    loss = session.validate(corpus.valid)
    if session.world.reports:
        bar = unigram_perplexity(corpus.train, corpus.valid, session.recipe.model.vocabulary_size)
        print(
            f"validation loss is {loss:.6f}, perplexity {math.exp(min(loss, 700)):.2f} (unigram model: {bar:.2f})",
            flush=True,
        )
    return loss


def _show_translations(model: Transformer, corpus: Corpus, recipe: TransformerRecipe) -> None:
    shown = corpus.showcase[: recipe.train.translations]
    if not shown:
        return
    translations = translate(
        model,
        corpus.tokenizer,
        [source for source, _ in shown],
        source_length=recipe.data.source_length,
        target_length=recipe.data.target_length,
    )
    for (source, reference), translation in zip(shown, translations, strict=True):
        print(f"source:      {source}\nreference:   {reference}\ntranslation: {translation}\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())
