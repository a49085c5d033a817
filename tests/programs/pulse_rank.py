"""A rank that does what its arguments say, one after another, and then sleeps.

    pulse_rank.py beat:3 touch print spin tree

`beat:N` writes a heartbeat of step N, `touch` touches the file, `print` writes a line; `spin`, `talk` and `keep-beating`
go on for ever, `tree` leaves an orphan that spins in the session of this process, and `strays` a child that spins in a
session of its own.
"""

import itertools
import os
import sys
import time

from launcher.core.heartbeat import Beat, beat, touch


def spin():
    """Compute, with pauses that leave the processor to others."""
    while True:
        until_s = time.process_time() + 0.015
        while time.process_time() < until_s:
            pass
        time.sleep(0.03)


def talk():
    while True:
        print("still here", flush=True)
        time.sleep(0.05)


def keep_beating():
    for step in itertools.count(1):
        beat(os.environ, Beat(step=step))
        time.sleep(0.05)


def tree():
    if os.fork() == 0:
        if os.fork() == 0:
            spin()
        os._exit(0)
    os.wait()


def strays():
    if os.fork() == 0:
        os.setsid()
        spin()


DEEDS = {
    "beat": lambda step: beat(os.environ, Beat(step=int(step))),
    "touch": lambda: touch(os.environ),
    "print": lambda: print("a line", flush=True),
    "spin": spin, "talk": talk, "keep-beating": keep_beating, "tree": tree, "strays": strays,
}  # fmt: skip

for argument in sys.argv[1:]:
    deed, *values = argument.split(":")
    DEEDS[deed](*values)
time.sleep(1000)
