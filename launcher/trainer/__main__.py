"""`python -m launcher.trainer`: train a bundled program as one rank of the job that the environment describes."""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import io
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, UsageError
from launcher.recipes.catalog import DEFAULT, RECIPES, recipe_named
from launcher.recipes.load import named_settings
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.parallel.place import choose_device, this_place
from launcher.trainer.parallel.world import open_world
from launcher.trainer.training_files import Files, own_run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank of a training with the given command-line arguments, and return the rank's exit code."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # printing must not fail if the locale cannot encode a character
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    return exit_code_of(partial(_train, _parser().parse_args(arguments)))


def _train(options: argparse.Namespace) -> None:
    keep_freed_memory()
    recipe = recipe_named(options.recipe)
    settings = recipe.load(options.config, options.settings)
    place = this_place(micro_batches=settings.train.micro_batches)
    place = dataclasses.replace(place, layout=recipe.own_layout(settings, place.layout))
    recipe.check_layout(settings, place.layout)
    if (options.source is None) != (options.target is None) or (options.data and options.source):
        raise UsageError(
            "the training data is not a --data PATH, or a --source FILE and a --target FILE",
            hint="use one of the two ways",
        )
    run = own_run()
    if options.save_strategy is True and run is None:
        raise UsageError(
            "--save-strategy needs a DIR if the trainer starts without `tlaunch run`", hint="use `--save-strategy DIR`"
        )
    files = Files(
        data=tuple(path for path in (options.data, options.source, options.target) if path is not None),
        output=options.output or (run.model if run else None),
        checkpoints=options.checkpoints or (run.checkpoints if run else None),
        resume=options.resume,
        init_from=options.init_from,
        strategy=run.strategy if run and options.save_strategy is True else options.save_strategy,
        named=named_settings(recipe.config_called(options.config), options.settings),
    )
    device = choose_device(place, settings.train.device, os.environ)

    def check_data() -> bytes:
        recipe.check_data(settings, files.data)
        return b""

    with open_world(place, device, settings.parallel.transport) as world:
        world.from_rank_0(check_data)
        import_module(recipe.program).train(settings, world, files)


def exit_code_of(work: Callable[[], object]) -> int:
    """Call `work` and return an exit code for the process. Print the error if `work` raises one."""
    try:
        work()
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:  # noqa: BLE001 - printed, and then this rank exits
        traceback.print_exc()
        return EXIT_FAILURE
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer", description=__doc__)
    parser.add_argument("--recipe", default=DEFAULT, metavar="NAME", help=f"{', '.join(RECIPES)} (default: {DEFAULT})")
    parser.add_argument(
        "--config", help="TOML file with settings, for example recipes/transformer/tutorial.toml in the tlaunch package"
    )
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, help="directory that `tlaunch data` wrote, or a file of sentence pairs")
    parser.add_argument("--source", type=Path, help="instead of --data: file with a source sentence on each line")
    parser.add_argument("--target", type=Path, help="file with the translation of each line of --source")
    parser.add_argument("--output", type=Path, help="directory for the trained model (default: in the run directory)")
    checkpoints = "directory of checkpoints (default: in the run directory); training resumes from the newest one"
    parser.add_argument("--checkpoints", type=Path, help=checkpoints)
    resume = "checkpoint to resume from, or a directory: its newest complete checkpoint"
    parser.add_argument("--resume", type=Path, help=resume)
    init_from = "model directory or checkpoint: initial weights and tokenizer, unless training resumes"
    parser.add_argument("--init-from", type=Path, help=init_from)
    parser.add_argument(
        "--save-strategy",
        type=Path,
        nargs="?",
        const=True,
        metavar="DIR",
        help="save a report of each rank's operators, layouts and collectives to DIR (default: in the run directory)",
    )
    return parser


def leave(exit_code: int) -> NoReturn:
    """Exit with `exit_code`. If it is not 0, exit without cleanup.

    Cleanup closes connections, and the peers would then fail with errors that hide this rank's error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code != EXIT_OK:
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    leave(main())
