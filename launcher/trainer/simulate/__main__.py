"""`python -m launcher.trainer.simulate`: the process behind `tlaunch plan simulate` and `run --device-memory`.

It prints the simulated step as one line of JSON, and messages on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys

from launcher.core.codec import encode
from launcher.core.records import Layout
from launcher.recipes.catalog import recipe_named
from launcher.trainer.__main__ import exit_code_of
from launcher.trainer.simulate.devices import KINDS, SimulatedDevice
from launcher.trainer.simulate.simulation import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.simulate", description=__doc__)
    parser.add_argument("--config")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    for axis in ("dp", "mp", "pp", "micro-batches"):
        parser.add_argument(f"--{axis}", type=int, default=1)
    parser.add_argument("--device", choices=KINDS, required=True)
    parser.add_argument("--rank", type=int, help="simulate only this rank")
    options = parser.parse_args()

    def work() -> None:
        settings = recipe_named("transformer").load(options.config, options.settings)
        layout = Layout(options.dp, options.mp, options.pp, options.micro_batches)
        ranks = None if options.rank is None else [options.rank]
        step = simulate(settings, layout, SimulatedDevice.of(options.device), ranks)
        sys.stdout.write(json.dumps(encode(step)) + "\n")

    return exit_code_of(work)


if __name__ == "__main__":
    sys.exit(main())
