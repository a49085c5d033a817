"""Claim: following logs costs the ranks nothing, and 256 quiet logs nothing at all; a line is seen when it is written.

What `tlaunch logs` does, beside `tail` in the same round; a ratio is the median of the rounds' ratios. Four measurements:

* ranks: 64 ranks write as fast as they can, followed by nobody, by `logs -f --merge`, or by `tail -F` (into a file). With
  fewer cores than processes a follower takes its CPU time from the ranks, and the run takes longer; whether it slows
  writing itself is told by the CPU time that the ranks need for the same lines.
* throughput: all that eight logs hold (some 200 MB), to /dev/null and to a pipe that is read. tail copies bytes; logs
  makes them harmless for a terminal and writes the rank before each line, as `sed` does here after tail.
* latency: from the write of a line to its arrival in a pipe, a line every 50 ms, each in another of all logs.
* idle: the share of one core that following quiet logs takes.

Exits with 1 if what must hold does not. --scale shortens everything but the number of logs.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common.checks import Bound, Checks
from common.options import parser
from common.processes import compile_launcher
from following import idle, latency, ranks, throughput
from following.bench import Bench

# By name: the measurement, and how many rounds it has unless --rounds says so.
MEASUREMENTS: dict[str, tuple[Callable[[Bench, int, Checks], None], int]] = {
    "ranks": (ranks.measure, 3),
    "throughput": (throughput.measure, 5),
    "latency": (latency.measure, 2),
    "idle": (partial(idle.measure, ranks=256, bound=Bound(must=0.01, aim=0.002)), 1),
    "idle-1024": (partial(idle.measure, ranks=1024), 1),
}


def main() -> int:
    options = parser(__doc__, list(MEASUREMENTS))
    options.add_argument("--scale", type=float, default=1.0, help="of lines and seconds")
    arguments = options.parse_args()
    checks = Checks()
    compile_launcher()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), arguments.scale)
        for name, (measure, rounds) in MEASUREMENTS.items():
            if name in (arguments.only or MEASUREMENTS):
                measure(bench, arguments.rounds or rounds, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
