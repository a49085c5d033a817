"""What the launcher itself costs: eight ranks of `true`, and of a Python that does nothing, against torchrun and a shell.

Every round runs each launcher once, in turn; ratios are of neighbours in time. Prints medians and ratios.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS, ROUNDS = 8, 7
BIN = Path(sys.executable).parent
PROGRAMS = {"true": ["true"], "python -c pass": [sys.executable, "-c", "pass"]}


def launchers(program: list[str], runs_dir: str) -> dict[str, list[str]]:
    """The same ranks under each launcher."""
    return {
        "tlaunch": [str(BIN / "tlaunch"), "run", "--devices", str(RANKS), "--runs-dir", runs_dir, "--", *program],
        "torchrun": [str(BIN / "torchrun"), "--nproc-per-node", str(RANKS), "--no-python", *program],
        "shell loop": ["sh", "-c", f'for i in $(seq {RANKS}); do "$@" & done; wait', "sh", *program],
    }


def seconds(command: list[str]) -> float:
    started_s = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - started_s


def main() -> None:
    with tempfile.TemporaryDirectory() as runs_dir:
        for name, program in PROGRAMS.items():
            commands = launchers(program, runs_dir)
            rounds = [{launcher: seconds(command) for launcher, command in commands.items()} for _ in range(ROUNDS)]
            medians = {launcher: statistics.median(times[launcher] for times in rounds) for launcher in commands}
            print(f"{RANKS} ranks of `{name}`: " + ", ".join(f"{who} {took:.2f} s" for who, took in medians.items()))
            for peer in ("torchrun", "shell loop"):
                ratio = statistics.median(times["tlaunch"] / times[peer] for times in rounds)
                print(f"  tlaunch takes {ratio:.2f} of {peer}")
        help_s = statistics.median(seconds([str(BIN / "tlaunch"), "--help"]) for _ in range(ROUNDS))
        bare_s = statistics.median(seconds([sys.executable, "-c", "pass"]) for _ in range(ROUNDS))
        print(f"tlaunch --help: {help_s * 1e3:.0f} ms, {help_s / bare_s:.1f} times a bare Python")


if __name__ == "__main__":
    main()
