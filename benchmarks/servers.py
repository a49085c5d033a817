"""Claim: a run over many servers costs little compared with mpirun, and no cost grows faster than their number.

hosts: one rank on each of several virtual hosts on this machine, each with a separate network, hostname, sshd and
process tree. `tlaunch run --engine mpi` and the same mpirun take turns. Ratios are the medians of the rounds' ratios,
slopes are least squares through the medians. "Until up" is the time until all ranks' programs have started, "until
end" until the command has returned. The hosts share this machine's cores, so work that real servers do in parallel is
serialised: the CPU seconds per server show how much.

simulation: up to 2,000 servers with 8 devices. The coordinator is real. Its engine is one process that simulates all
agents (programs/simulated_agents.py), and no ranks are started. This gives the work of the coordinator, the network
and each agent for N servers, its growth, and the cost of heartbeats.

On N real servers, the total is mpirun's time for N servers, plus one server's CPU time, plus the coordinator's part
of the simulation. mpirun's tree of ssh connections grows more slowly than this slope if hosts do not share cores.
"""

from __future__ import annotations

import sys

from common.checks import Checks
from common.options import parser
from common.processes import compile_launcher
from many_servers import hosts, simulation

PARTS = ("hosts", "simulation")
ROUNDS = 3


def main() -> int:
    options = parser(__doc__, PARTS)
    options.add_argument("--servers", type=int, action="append", help="this many and no others; may be repeated")
    arguments = options.parse_args()
    wanted = arguments.only or PARTS
    checks = Checks()
    compile_launcher()
    if "hosts" in wanted:
        hosts.measure(arguments.servers or hosts.SIZES, arguments.rounds or ROUNDS, checks)
    if "simulation" in wanted:
        simulation.measure(arguments.servers or simulation.SIZES, checks)
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
