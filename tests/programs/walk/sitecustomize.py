"""Record which functions of the launcher handle the value that a walk follows, in every process of a run.

Python imports this module at startup if its folder is on PYTHONPATH. It reads `walk.json` in the same folder:

package       the folder of the launcher
marker        a text that the value contains, or ""
types         names of classes whose instances are followed
opaque        names of classes whose instances are not searched for what is followed
numbers       rows of numbers; an equal list or tuple is followed; or null
until         a process stops recording when this function first returns, or null
within        record only during the first call of the function with this name, or null
until_fork    the first process stops recording at this fork, or 0. It forks a watcher first, then the agent.
"""

import json
import os
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
MAX_ITEMS = 100  # of a collection; longer ones are data
WALK = json.loads((HERE / "walk.json").read_text(encoding="utf-8"))
TYPES, OPAQUE, MARKER = frozenset(WALK["types"]), frozenset(WALK["opaque"]), WALK["marker"]
NUMBERS = WALK["numbers"] and (WALK["numbers"], tuple(map(tuple, WALK["numbers"])))

seen = set()
calls_within = 0


def is_rows_of_numbers(value):
    return all(type(row) in {tuple, list} and all(type(number) is int for number in row) for row in value)


def carries(value, depth=6):
    """Return True if `value` is the followed value, or a record or collection that contains it."""
    kind = type(value)
    if kind is str or issubclass(kind, Path):
        return bool(MARKER) and MARKER in str(value)
    if kind in {bytes, bytearray}:
        return bool(MARKER) and MARKER.encode() in value
    if kind.__name__ in TYPES and kind.__module__.partition(".")[0] in {"launcher", "torch"}:
        return True
    held = ()
    if kind in {tuple, list}:
        if NUMBERS and is_rows_of_numbers(value) and value in NUMBERS:
            return True
        held = value
    elif kind is dict:
        held = list(value.values())
    elif (
        kind.__module__.startswith("launcher.")
        and hasattr(kind, "__dataclass_fields__")
        and kind.__name__ not in OPAQUE
    ):
        held = [getattr(value, name, None) for name in kind.__dataclass_fields__]
    return depth > 0 and any(carries(item, depth - 1) for item in held[:MAX_ITEMS])


def profile(frame, event, value):
    """Record a function that is called with the value or returns it, after its caller."""
    global calls_within  # noqa: PLW0603 - one count per process
    code = frame.f_code
    if event not in {"call", "return"} or not code.co_filename.startswith(WALK["package"]):
        return
    if event == "return" and code.co_name == WALK["until"]:
        sys.setprofile(None)
    if code.co_name == WALK["within"]:
        calls_within += 1 if event == "call" else -1
        if not calls_within:
            sys.setprofile(None)
    elif WALK["within"] and not calls_within:
        return
    call = code, frame.f_back and frame.f_back.f_code
    if call in seen or code.co_name.startswith("<"):
        return
    # At the call of a function its locals are its arguments, and those of its closure or generator.
    if carries(list(frame.f_locals.values()) if event == "call" else value):
        seen.add(call)
        caller = frame.f_back
        while caller and not caller.f_code.co_filename.startswith(WALK["package"]):
            caller = caller.f_back
        with (HERE / "seen.txt").open("a", encoding="utf-8") as notes:  # one write for all lines of a call
            for each in (caller.f_code, code) if caller else (code,):
                notes.write(f"{os.getpid()}\t{each.co_filename}\t{each.co_name}\n")


def count_fork():
    """Stop recording in the first process at the fork `until_fork`."""
    global forks  # noqa: PLW0603 - one count per process
    forks += os.getpid() == first
    if forks == WALK["until_fork"] and os.getpid() == first:
        sys.setprofile(None)


if WALK["until_fork"]:
    first, forks = os.getpid(), 0
    os.register_at_fork(after_in_parent=count_fork)
threading.setprofile(profile)
sys.setprofile(profile)
