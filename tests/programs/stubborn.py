"""A rank that does not want to go: `python stubborn.py [ignore] [new-session] [double-fork] [stopped] [child-only]`.

Prints `ready` once everything is in place. `ignore`: SIGTERM, SIGINT and SIGHUP do nothing. `new-session`, `double-fork`:
a child, also ignoring if so asked, in a session of its own, or orphaned there. `stopped`: stops itself (SIGSTOP).
`child-only`: ends well at once, but leaves its child running.
"""

import os
import signal
import sys

WISHES = set(sys.argv[1:])


def wait_for_ever():
    while True:
        signal.pause()


def start_child():
    """Start the child and return when it is in place."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if "double-fork" in WISHES and os.fork() != 0:
            os._exit(0)
        os.write(writer, b".")
        os.close(writer)
        wait_for_ever()
    os.close(writer)
    os.read(reader, 1)
    if "double-fork" in WISHES:
        os.wait()


if "ignore" in WISHES:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
if WISHES & {"new-session", "double-fork"}:
    start_child()
print("ready", flush=True)
if "child-only" in WISHES:
    sys.exit(0)
if "stopped" in WISHES:
    os.kill(os.getpid(), signal.SIGSTOP)
wait_for_ever()
