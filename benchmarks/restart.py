"""Claim: after the death of a rank, all eight run again within a tenth of torchrun's time.

The time is measured from the SIGKILL of a rank until all ranks of the next attempt have met in an all_reduce over
gloo. There are three kills under `--max-restarts 3`, each compared with torchrun's kill of the same number. torchrun
gets TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Without it, its gloo ranks find addresses of dead ranks in the store that
all attempts share, and every restart fails. Exits with 1 if the ratio misses its limit.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common.processes import BIN

PROGRAM = Path(__file__).parent / "programs" / "restarted.py"
RANKS, KILLS = 8, 3
VICTIM = 5
MUST = AIM = 0.1
PATIENCE_S = 180
TICK_S = 0.005


def commands(runs_dir: str) -> dict[str, list[str]]:
    count, restarts = str(RANKS), str(KILLS)
    return {
        "tlaunch": [
            str(BIN / "tlaunch"), "run", "--devices", count, "--max-restarts", restarts, "--runs-dir", runs_dir,
            "--", sys.executable, str(PROGRAM),
        ],
        "torchrun": [
            str(BIN / "torchrun"), "--standalone", "--nproc-per-node", count, "--max-restarts", restarts, str(PROGRAM)
        ],
    }  # fmt: skip


def wait_for_attempt(times: Path, number: int, process: subprocess.Popen[bytes]) -> tuple[int, int]:
    """When the last rank of an attempt was up, nanoseconds since 1970; and the pid of the rank to kill."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        noted = {path.name: path.read_text(encoding="ascii").splitlines() for path in times.iterdir()}
        if len(noted) == RANKS and all(len(lines) > number for lines in noted.values()):
            rows = {name: lines[number].split() for name, lines in noted.items()}
            if all(len(row) == 2 for row in rows.values()):  # none is half written
                return max(int(up_ns) for _, up_ns in rows.values()), int(rows[str(VICTIM)][0])
        assert process.poll() is None, f"attempt {number}: the launcher ended with {process.returncode}"
        assert time.monotonic() < deadline, f"attempt {number} never ran"
        time.sleep(TICK_S)


def restarts_s(command: list[str]) -> list[float]:
    """Seconds from each kill until all ranks ran again."""
    took: list[float] = []
    with tempfile.TemporaryDirectory() as times, tempfile.TemporaryFile() as output:
        environment = {**os.environ, "BENCH_TIMES": times, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            _, victim = wait_for_attempt(Path(times), 0, process)
            for number in range(1, KILLS + 1):
                time.sleep(0.5)  # all wait in their sleep, and launchers for something to happen
                killed_ns = time.time_ns()
                os.kill(victim, signal.SIGKILL)
                up_ns, victim = wait_for_attempt(Path(times), number, process)
                took.append((up_ns - killed_ns) / 1e9)
        except AssertionError:
            output.seek(0)
            sys.stderr.buffer.write(output.read()[-8192:])
            raise
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1, help="of three kills each")
    rounds = parser.parse_args().rounds
    ratios = []
    with tempfile.TemporaryDirectory() as runs_dir:
        for _ in range(rounds):
            took = {name: restarts_s(command) for name, command in commands(runs_dir).items()}
            for number, (ours_s, theirs_s) in enumerate(zip(took["tlaunch"], took["torchrun"], strict=True), 1):
                ratios.append(ours_s / theirs_s)
                print(f"kill {number}: tlaunch {ours_s:.2f} s, torchrun {theirs_s:.2f} s, ratio {ratios[-1]:.3f}")
    ratio = statistics.median(ratios)
    print(f"tlaunch restarts in {ratio:.3f} of torchrun's time; {'OK' if ratio <= MUST else 'NOT'}: aim {AIM}")
    return 0 if ratio <= MUST else 1


if __name__ == "__main__":
    sys.exit(main())
