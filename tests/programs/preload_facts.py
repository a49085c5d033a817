"""Prints what a program can see of how it was started, one fact a line."""

import gc
import os
import signal
import sys
import threading
from pathlib import Path

initial = sorted(globals())


def of_stream(stream):
    return stream.name, stream.mode, stream.encoding, stream.errors, stream.line_buffering, stream.write_through


def descriptors():
    """Below 100: what is above is out of a program's way."""
    return sorted(int(link.name) for link in Path("/proc/self/fd").iterdir() if int(link.name) < 100)


def text(path):
    return path.read_bytes().rstrip(b"\0\n").split(b"\0")


FACTS = {
    "argv": sys.argv,
    "orig_argv": getattr(sys, "orig_argv", None),
    "path": sys.path,
    "flags": sys.flags,
    "warnings": sys.warnoptions,
    "X": sys._xoptions,
    "executable": sys.executable,
    "prefix": sys.prefix,
    "globals": initial,
    "name": __name__,
    "file": globals().get("__file__", "-"),
    "cached": globals().get("__cached__", "-"),
    "doc": __doc__,
    "package": __package__,
    "loader": type(__loader__).__name__,
    "spec": str(__spec__).partition("object at")[0],
    "spec origin": getattr(__spec__, "origin", "-"),
    "builtins": __builtins__,
    "main": sys.modules["__main__"].__dict__ is globals(),
    "hooks": (sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__),
    "streams": [of_stream(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
    "streams kept": (sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__),
    "descriptors": descriptors(),
    "next descriptor": os.open(os.devnull, os.O_RDONLY),
    "inheritable": [number for number in range(200) if Path(f"/proc/self/fd/{number}").exists()
                    and os.get_inheritable(number)],
    # But for the one by which a rank is asked for its stacks.
    "signals": {
        number: str(signal.getsignal(number)) for number in signal.valid_signals() if number != signal.SIGRTMAX - 3
    },
    "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
    "environment": dict(os.environ),
    "cwd": Path.cwd(),
    "umask": os.umask(0o22),
    "leads": (os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()),
    "threads": threading.enumerate().__len__(),
    "main thread": threading.current_thread() is threading.main_thread(),
    "gc": (gc.isenabled(), gc.get_threshold()),
    "recursion": sys.getrecursionlimit(),
    "command line": text(Path("/proc/self/cmdline")),
    "own name": text(Path("/proc/self/comm")),
    "cpus": sorted(os.sched_getaffinity(0)),
    "modules": sorted(name for name in sys.modules if not name.startswith("_tlaunch_preload")),
}  # fmt: skip
for name, value in FACTS.items():
    print(f"{name}: {value}")
