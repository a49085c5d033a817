"""`python -m launcher.trainer`: train a bundled program as one rank among those that the environment names."""

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
from typing import Literal, NoReturn

from launcher.core import env
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, UsageError
from launcher.core.run_dir import RunDir
from launcher.recipes.catalog import DEFAULT, RECIPES, recipe_named
from launcher.recipes.load import named_settings
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.parallel.place import choose_device, this_place
from launcher.trainer.parallel.world import open_world
from launcher.trainer.training_files import Files


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one rank; the exit code is 0, that of the TlaunchError it ended with, or 1 after a traceback."""
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # a locale that knows no accents must not end a training
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
    run_dir = os.environ.get(env.TLAUNCH_RUN_DIR)
    files = Files(
        data=options.data,
        output=options.output or (RunDir(Path(run_dir)).model if run_dir else None),
        checkpoints=options.checkpoints or (RunDir(Path(run_dir)).checkpoints if run_dir else None),
        resume=options.resume,
        strategy=_strategy_directory(options.save_strategy, run_dir),
        named=named_settings(options.config, options.settings),
    )
    device = choose_device(place, settings.train.device, os.environ)

    def check_data() -> bytes:
        recipe.check_data(settings, files.data)
        return b""

    with open_world(place, device, settings.parallel.transport) as world:
        world.from_rank_0(check_data)
        import_module(recipe.program).train(settings, world, files)


def _strategy_directory(asked: Path | Literal[True] | None, run_dir: str | None) -> Path | None:
    """Return where the strategy reports are to be written: as `asked`, or in the run directory."""
    if asked is not True:
        return asked
    if run_dir is None:
        raise UsageError(
            "--save-strategy: there is no run directory", hint="--save-strategy DIR says where they belong"
        )
    return RunDir(Path(run_dir)).strategy


def exit_code_of(work: Callable[[], object]) -> int:
    """Call `work`; return 0, the code of the TlaunchError that ended it, or 1 after the traceback of another exception."""
    try:
        work()
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except Exception:  # noqa: BLE001 - told, and then this rank leaves at once
        traceback.print_exc()
        return EXIT_FAILURE
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer", description=__doc__)
    parser.add_argument("--recipe", default=DEFAULT, metavar="NAME", help=f"{', '.join(RECIPES)} (default: {DEFAULT})")
    parser.add_argument("--config", help="TOML file, or a packaged one such as recipes/transformer/tutorial.toml")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, help="a directory that `tlaunch data` wrote, or one file of pairs")
    parser.add_argument("--output", type=Path, help="directory for the trained model (default: in the run directory)")
    parser.add_argument(
        "--checkpoints",
        type=Path,
        help="directory of the checkpoints (default: in the run directory); goes on from its newest",
    )
    parser.add_argument(
        "--resume", type=Path, help="a checkpoint, or a directory of them: go on from the newest whole one"
    )
    parser.add_argument(
        "--save-strategy",
        type=Path,
        nargs="?",
        const=True,
        metavar="DIR",
        help="write each rank's operators, layouts and collectives of one step (default: in the run directory)",
    )
    return parser


def leave(exit_code: int) -> NoReturn:
    """End this process; after a failure at once, since peers fail too as soon as this rank's connections close."""
    sys.stdout.flush()
    sys.stderr.flush()
    if exit_code != EXIT_OK:
        os._exit(exit_code)
    sys.exit(exit_code)


if __name__ == "__main__":
    leave(main())
