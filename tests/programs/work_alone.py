"""Three ranks, of which some work for longer than ranks may wait for each other, and then end well or badly.

    work_alone.py DIRECTORY

Writes <case><rank>: what the rank got of it.
"""

import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

from ranks import fork_ranks, own_world

from launcher.core.errors import TlaunchError, UsageError
from launcher.trainer.parallel import world as world_module

TIMEOUT_S = 5.0
world_module.GROUP_TIMEOUT = timedelta(seconds=TIMEOUT_S)
world_module.ROUND_S = 0.5


def refuse() -> None:
    time.sleep(0.5)
    raise UsageError("rank 2 does not like it", hint="another one")


CASES = {
    "work": {1: lambda: time.sleep(1.3 * TIMEOUT_S), 2: lambda: None},
    "refusal": {1: lambda: time.sleep(60), 2: refuse},
    "missing": {0: lambda: Path("/nowhere").read_bytes()},
}


def run(case: str, directory: Path) -> None:
    with own_world() as world:
        try:
            world.while_others_wait(CASES[case].get(world.place.global_rank))
        except TlaunchError as error:
            outcome = f"{type(error).__name__}: {error}"
        else:
            outcome = "done"
        (directory / f"{case}{world.place.global_rank}").write_text(outcome)


if __name__ == "__main__":
    for name in CASES:
        fork_ranks(name, partial(run, name, Path(sys.argv[1])), dp=3)
