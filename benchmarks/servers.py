"""Claim: what a run over many servers costs: little beside what mpirun itself takes, and nothing that grows worse than their number.

hosts: a rank on each of some virtual hosts (network, hostname, sshd and process tree of their own, all on this machine),
by `tlaunch run --engine mpi` and by the same mpirun alone, in turn; ratios are the medians of the rounds' ratios, slopes
are least squares through the medians. Until up: all ranks' programs have begun. Until end: the command has returned.
Hosts share the cores of this machine, so that what servers would do side by side is done here one after the other:
the CPU seconds per server tell how much that is.

simulation: up to 2,000 servers of 8 devices. The coordinator is real; its engine is one process that speaks for all
agents (programs/simulated_agents.py), and no rank is started. It gives what the coordinator, the network and each agent have to do
for N servers, how it grows, and what their heartbeats cost.

On N real servers: what mpirun takes for N (its own tree of ssh, which grows slower than this slope once hosts do not
share cores), then one server's CPU, all side by side, then the coordinator's part of the simulation.
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
