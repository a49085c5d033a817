"""Fails in the way named by its argument; every exception comes from `step`."""

import atexit
import sys
import threading
import traceback


def step(message="no such word"):
    raise ValueError(message)


def uncaught():
    step()


def caught():
    try:
        step()
    except ValueError:
        traceback.print_exc()
    sys.exit(3)


def chained():
    try:
        step()
    except ValueError as error:
        raise RuntimeError("cannot go on") from error


def chained_twice():
    try:
        chained()
    except RuntimeError:
        raise KeyError("x")  # noqa: B904 - "during handling of the above exception"


def thread():
    worker = threading.Thread(target=step, name="loader")
    worker.start()
    worker.join()


def thread_after_main():
    try:
        step("in the main thread")
    except ValueError:
        traceback.print_exc()
    thread()


class Clumsy:
    def __del__(self):
        step("ignored")


def ignored_afterwards():
    try:
        step()
    except ValueError:
        traceback.print_exc()
    clumsy = Clumsy()
    del clumsy


def at_exit():
    atexit.register(step, "at exit")
    step()


def syntax():
    exec(compile("x = (\n", "settings.py", "exec"))


def group():
    raise ExceptionGroup("several", [ValueError("first"), KeyError("second")])  # noqa: F821 - Python 3.11


def deep():
    deep()


def many_lines():
    step("one\ntwo\nthree")


def prefixed():
    try:
        step("one\ntwo")
    except ValueError:
        for line in traceback.format_exc().splitlines():
            print(f"[rank3]: {line}", file=sys.stderr)
    print("[rank3]:[W1121 12:33:38 ProcessGroup.cpp:1] something else", file=sys.stderr)


def no_message():
    raise KeyboardInterrupt


def after_a_bar():
    print("epoch 1:  50%|####      | 5/10\r", end="", file=sys.stderr)
    step()


print("starting")
globals()[sys.argv[1]]()
