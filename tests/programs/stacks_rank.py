"""A rank that answers when its stacks are asked for: `python stacks_rank.py STACKS_LOG WHAT`.

Prints `ready` as soon as it can be asked and is about to do WHAT: one of the functions below, named with dashes.
"""

import faulthandler
import hashlib
import os
import queue
import re
import signal
import sys
import threading
import time
from pathlib import Path

STACKS_SIGNAL = signal.SIGRTMAX - 3


def sleep():
    time.sleep(1000)


without_handler = sleep


def lock():
    held = threading.Lock()
    held.acquire()
    held.acquire()


def wait_for_queue():
    queue.Queue().get()


def busy():
    while True:
        hashlib.sha256(b"x").digest()


def hold_interpreter_lock():
    """One call into C that never returns and lets no other thread run."""
    re.match("(a*)*b", "a" * 60)


def threads():
    for _ in range(20):
        threading.Thread(target=sleep, daemon=True).start()
    sleep()


def deep():
    def descend(levels):
        return descend(levels - 1) if levels else sleep()

    descend(150)


def deep_threads():
    for _ in range(10):
        threading.Thread(target=deep, daemon=True).start()
    sleep()


def block_signal():
    signal.pthread_sigmask(signal.SIG_BLOCK, [STACKS_SIGNAL])
    sleep()


def close_descriptors():
    """As a daemon does; the descriptor of stacks.log then belongs to another file."""
    os.closerange(3, 64)
    with Path(f"{sys.argv[1]}.precious").open("w"):
        sleep()


def count():
    """One line for every ten milliseconds that are really slept."""
    while True:
        time.sleep(0.01)
        print("tick", flush=True)


def wait_in_kernel():
    """In state D: the start of a program does not get on while its stdin, a FIFO, has no writer."""
    fifo = f"{sys.argv[1]}.fifo"
    os.mkfifo(fifo)
    os.posix_spawnp("true", ["true"], os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 0, fifo, os.O_RDONLY, 0)])
    sleep()


def main():
    if sys.argv[2] != "without-handler":
        descriptor = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True, chain=False)
    print("ready", flush=True)
    globals()[sys.argv[2].replace("-", "_")]()


main()
