"""A member, and on the lowest rank its agent too: `member.py DIRECTORY COUNT PROGRAM ARGUMENTS...`.

The agent starts the program once for each member, as its own child, with its output in DIRECTORY/<rank>.log, and writes
to DIRECTORY/ends.json how all of them ended and which members left before.
"""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from launcher.core.engine_rank import read_engine_rank
from launcher.core.errors import exit_code_of
from launcher.supervise.mpi_proxy import Left, MpiProxies, hand_over, meeting_name


def act_as_agent(members, directory, program):
    while members.missing:
        select.select([members], [], [])
        members.step()
    ranks = [start(members, global_rank, directory, program) for global_rank in range(count)]
    ends = [rank.wait() for rank in ranks]
    left = sorted({told.global_rank for told in members.step() if isinstance(told, Left)})
    (directory / "ends.json").write_text(json.dumps({"ends": ends, "left": left}))
    for global_rank, status in enumerate(ends):
        members.tell_end(global_rank, status)
    members.close()


def start(members, global_rank, directory, program):
    with (directory / f"{global_rank}.log").open("wb") as log:
        return subprocess.Popen(
            program, env=members.environment_of(global_rank), pass_fds=members.descriptors_of(global_rank),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip


directory, count, program = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
me = read_engine_rank(os.environ, os.getpid())
name = meeting_name(str(directory))
agent = 0
if me.global_rank == 0:
    agent = os.fork()
    if agent == 0:
        os.setsid()
        act_as_agent(MpiProxies(name, range(count)), directory, program)
        os._exit(0)
status = hand_over(name, os.environ, me.global_rank)
if agent:
    os.waitpid(agent, 0)
os._exit(99 if status is None else exit_code_of(status))
