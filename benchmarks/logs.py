"""Claim: following logs costs the ranks nothing, following 256 quiet logs costs nothing, and lines appear at once.

Each round compares `tlaunch logs` with `tail`; a ratio is the median of the rounds' ratios. There are four
measurements:

* ranks: 64 ranks write at full speed, with no follower, `logs -f --merge`, or `tail -F` (into a file). With fewer
  cores than processes, a follower takes CPU time from the ranks, and the run takes longer. The CPU time of the ranks
  for the same lines shows whether a follower slows down writing itself.
* throughput: the contents of eight logs (about 200 MB), to /dev/null and to a pipe. tail only copies bytes; `logs`
  also escapes control characters and adds the rank to each line. `sed` does the same after tail.
* latency: the time from the write of a line to its arrival in a pipe, with a line every 50 ms, each in the next log.
* idle: the share of one core used for following quiet logs.

Exits with 1 if a limit is missed. --scale shortens everything except the number of logs.
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
