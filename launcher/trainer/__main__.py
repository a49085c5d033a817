"""`python -m launcher.trainer`: train the Transformer as one rank among those that the environment names."""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.core import env
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.run_dir import RunDir
from launcher.recipes.load import load_transformer
from launcher.recipes.transformer.checks import check_layout
from launcher.trainer.recipes.transformer import train
from launcher.trainer.world import choose_device, open_world, this_place


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
            train(recipe, world, options.data, output)
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


if __name__ == "__main__":
    sys.exit(main())
