"""Claim: after a rank's death, an elastic training takes its next step within 0.3 of torchrun's time.

    python benchmarks/elastic.py [--rounds N]

Both run the bundled trainer on the same number of ranks. The time is measured from the SIGKILL of a rank until rank 0
reports the next step. With tlaunch, a first kill restarts all eight ranks; after a second kill of the same device,
the training continues on seven. Both resume from the newest checkpoint. torchrun restarts all eight ranks both times,
without checkpoints, so its next step is the first one, which is less work. It gets
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, as in restart.py. Exits with 1 if a ratio misses its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
from common.checks import Bound, Checks, median_ratio
from common.processes import BIN, PATIENCE_S

RANKS, VICTIM = 8, 5
KILLS = ("kill with a restart on eight ranks", "kill with seven ranks afterwards")
SETTINGS = (
    "train.steps=1000000", "train.translations=0", "model.d_model=64", "model.feed_forward_dim=128", "train.batch_size=16",
)  # fmt: skip
STEP = re.compile(rb"loss is")
STEPS_BEFORE = 20  # a kill


def commands(runs_dir: str) -> dict[str, list[str]]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return {
        "tlaunch": [
            str(BIN / "tlaunch"), "run", "--devices", str(RANKS), "--elastic", "--max-restarts", "3",
            "--runs-dir", runs_dir, *settings, "--set", "checkpoint.every_steps=10",
        ],
        "torchrun": [
            str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "3",
            "-m", "launcher.trainer", *settings,
        ],
    }  # fmt: skip


def steps_s(command: list[str], runs_dir: str) -> dict[str, float]:
    """Seconds from each kill until the next step, by what the kill is called."""
    took: dict[str, float] = {}
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONUNBUFFERED": "1",
    }
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=said, start_new_session=True
        )
        assert process.stdout is not None
        try:
            wait_for_steps(process.stdout, STEPS_BEFORE)
            for kill in KILLS:
                victim = (
                    rank_of_tlaunch(runs_dir) if Path(command[0]).name == "tlaunch" else rank_of_torchrun(process.pid)
                )
                began_s = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                psutil.Process(victim).wait(PATIENCE_S)
                skip_what_is_there(process.stdout)
                wait_for_steps(process.stdout, 1)
                took[kill] = time.monotonic() - began_s
                wait_for_steps(process.stdout, STEPS_BEFORE)
        except AssertionError:
            said.seek(0)
            sys.stderr.buffer.write(said.read()[-8192:])
            raise
        finally:
            process.terminate()
            process.communicate()
    return took


def wait_for_steps(stdout: IO[bytes], count: int) -> None:
    """Read until rank 0 has told of so many steps."""
    while count:
        line = stdout.readline()
        assert line, "the launcher has ended"
        count -= STEP.search(line) is not None


def skip_what_is_there(stdout: IO[bytes]) -> None:
    """Read the lines that the killed attempt has written, up to the first of the next one."""
    while b"layout: " not in (line := stdout.readline()):
        assert line, "the launcher has ended"


def rank_of_tlaunch(runs_dir: str) -> int:
    """Return the pid of the rank to kill."""
    state = subprocess.run(
        [BIN / "tlaunch", "status", "--json", "--runs-dir", runs_dir], check=True, stdout=subprocess.PIPE
    )
    return int(json.loads(state.stdout)["each"][VICTIM]["pid"])


def rank_of_torchrun(launcher: int) -> int:
    """Return the pid of the rank to kill."""
    for child in psutil.Process(launcher).children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if child.environ().get("LOCAL_RANK") == str(VICTIM):
                return child.pid
    raise AssertionError("the rank to kill is not there")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as runs_dir:
        for _ in range(rounds):
            found = {name: steps_s(command, runs_dir) for name, command in commands(runs_dir).items()}
            rows.append({f"{name} {kill}": took for name, kills in found.items() for kill, took in kills.items()})
            print("  " + "; ".join(f"{name} {took:.2f} s" for name, took in rows[-1].items()), flush=True)
    checks = Checks()
    for kill in KILLS:
        checks.tell(
            f"{kill}, of torchrun's time", median_ratio(rows, f"tlaunch {kill}", f"torchrun {kill}"), Bound(0.3, 0.3)
        )
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
