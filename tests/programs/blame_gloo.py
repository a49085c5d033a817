"""Small gloo jobs, all at once: in each, rank 1 (or the store's rank 0) does what the job is named after.

    blame_gloo.py DIRECTORY JOB...

A job called shared-NAME is that of NAME, but its ranks share memory for their collectives once they have met by gloo.
torch is imported once, then every rank is forked. Rank r of job j writes to DIRECTORY/j.r. The exit statuses, as in
subprocess, are printed as one JSON object: {job: [status of rank 0, ...]}. Rank 1 sleeps until it is killed at the end
where it is the one that the others wait for; its status is then that of the kill.
"""

import json
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from launcher.supervise.port import hold_port
from launcher.trainer.parallel.one_host import share_memory

WORLD_SIZE = 3
CULPRIT = 1
PATIENCE = timedelta(seconds=90)  # where no time is to run out
TIMEOUT = timedelta(seconds=10)  # where it runs out for ranks that have met before: the machine may be busy
SHORT = timedelta(seconds=2)  # where they never meet
TIMEOUTS = {"sleeps": TIMEOUT, "misses-barrier": TIMEOUT, "stays-away": SHORT, "store-never-there": SHORT}
SLEEPS = {"sleeps", "stays-away", "misses-barrier"}


def misbehave(job):
    if job in SLEEPS:
        time.sleep(1000)
    if job == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "raises":
        raise ValueError("no such word")
    if job == "returns":
        sys.exit(0)


def rank_of(job, rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(WORLD_SIZE))
    shared, job = job.startswith("shared-"), job.removeprefix("shared-")
    if job == "store-never-there" and rank == 0:
        time.sleep(1000)
    if job == "stays-away" and rank == CULPRIT:
        misbehave(job)
    dist.init_process_group("gloo", timeout=TIMEOUTS.get(job, PATIENCE))
    all_reduce = dist.all_reduce
    if shared:
        memory = share_memory(range(WORLD_SIZE), rank, dist.group.WORLD, TIMEOUTS.get(job, PATIENCE))
        all_reduce = partial(memory.all_reduce, operation="sum")
    all_reduce(torch.ones(1))
    if job == "store-dies":
        if rank == 0:
            os._exit(9)
        time.sleep(0.3)  # until that has happened
        dist.new_group(list(range(WORLD_SIZE)))
    if job == "user-timeout" and rank == CULPRIT:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            socket.create_connection(silent.getsockname(), timeout=0.2).recv(1)
    if rank == CULPRIT:
        misbehave(job)
    if job == "misses-barrier":
        dist.monitored_barrier(timeout=TIMEOUT)
    for _ in range(3):
        all_reduce(torch.ones(1000))


def forked(job, rank, port, log):
    pid = os.fork()
    if pid:
        return pid
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    status = 1
    try:
        rank_of(job, rank, port)
        status = 0
    except SystemExit as asked:
        status = asked.code
    except BaseException:  # noqa: BLE001 - printed as Python would, in a forked child
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def status_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main(directory, jobs):
    torch.set_num_threads(1)
    ranks = {}
    ports = {job: hold_port() for job in jobs}  # or two jobs might get the same one
    for job, port in ports.items():
        ranks[job] = [forked(job, rank, port.number, directory / f"{job}.{rank}") for rank in range(WORLD_SIZE)]
    statuses = {}
    for job, pids in ranks.items():
        sleeper = CULPRIT if job.removeprefix("shared-") in SLEEPS else 0 if job == "store-never-there" else None
        ended = {rank: status_of(pid) for rank, pid in enumerate(pids) if rank != sleeper}
        if sleeper is not None:
            os.kill(pids[sleeper], signal.SIGKILL)
            ended[sleeper] = status_of(pids[sleeper])
        statuses[job] = [ended[rank] for rank in range(WORLD_SIZE)]
    print(json.dumps(statuses))


main(Path(sys.argv[1]), sys.argv[2:])
