"""Meet at a scheduler as the ranks of MindSpore do: they register with it, and take leave of it when they end.

    meets_at_scheduler.py [WORD]...

late: the last rank stays 2 s longer than others; late-for-ever: it never leaves. raises, raises-once: rank 1 raises once all have met. sleeps: ranks stay.
scheduler-raises, scheduler-killed: it ends once all have met; no-scheduler: it never begins.
"""

import os
import signal
import socket
import sys
import time

words = set(sys.argv[1:])
count = int(os.environ["MS_WORKER_NUM"])
address = os.environ["MS_SCHED_HOST"], int(os.environ["MS_SCHED_PORT"])


def tell(word):
    """Tell the scheduler, as soon as it listens, and wait for its answer."""
    while socket.socket().connect_ex(address):
        time.sleep(0.05)
    with socket.create_connection(address, timeout=60) as connection:
        connection.sendall(word.encode())
        assert connection.recv(1)


def schedule():
    if "no-scheduler" in words:
        sys.exit("this one cannot begin")
    listener = socket.create_server(address)
    print(f"scheduler of {count}, node {os.environ.get('MS_NODE_ID')}", flush=True)
    met, left = [], 0
    while left < count:
        connection, _ = listener.accept()
        word = connection.recv(8)
        if word == b"meet":
            met.append(connection)
            if len(met) == count:
                for each in met:
                    each.sendall(b".")
                if "scheduler-raises" in words:
                    raise RuntimeError("a node is lost")
                if "scheduler-killed" in words:
                    os.kill(os.getpid(), signal.SIGKILL)
        elif word:  # else it only looked whether somebody listens
            left += 1
            connection.sendall(b".")
            connection.close()
    time.sleep(5)  # as MindSpore's


def work():
    rank = int(os.environ["MS_NODE_ID"])
    assert rank == int(os.environ["RANK"])
    tell("meet")
    print(f"rank {rank} of {count} met the others at port {address[1]}", flush=True)
    if rank == 1 and ("raises" in words or ("raises-once" in words and os.environ["TLAUNCH_ATTEMPT"] == "0")):
        raise ValueError("boom")
    if (
        words & {"raises", "raises-once", "sleeps", "scheduler-raises", "scheduler-killed"}
        and os.environ["TLAUNCH_ATTEMPT"] == "0"
    ):
        time.sleep(1000)
    if rank == count - 1 and words & {"late", "late-for-ever"}:
        time.sleep(2 if "late" in words else 1000)
    tell("left")
    print(f"rank {rank} left", flush=True)


schedule() if os.environ["MS_ROLE"] == "MS_SCHED" else work()
