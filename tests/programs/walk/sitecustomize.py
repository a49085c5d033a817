"""Note which functions of the launcher handle the value that a walk follows, in every process of a run.

Python imports this module when it starts with its folder on PYTHONPATH. `walk.json` beside it says what to follow:
`package`, the folder of the launcher; `marker`, a text that the value contains; `types`, names of classes of which it is an
instance; `within`, the name of the function during whose first call alone functions are noted, or null; `until_fork`,
the number of the fork at which the first process stops noting, or 0: it forks a watcher first, and then the agent.
"""

import json
import os
import sys
import threading
from pathlib import Path

HERE = Path(__file__).parent
WALK = json.loads((HERE / "walk.json").read_text(encoding="utf-8"))
TYPES, MARKER = frozenset(WALK["types"]), WALK["marker"]

seen = set()
calls_within = 0


def carries(value, depth=6):
    """Return whether `value` is the value that is followed, or a record or collection that holds it."""
    kind = type(value)
    if kind is str or issubclass(kind, Path):
        return bool(MARKER) and MARKER in str(value)
    if kind in {bytes, bytearray}:
        return bool(MARKER) and MARKER.encode() in value
    if kind.__name__ in TYPES and kind.__module__.partition(".")[0] in {"launcher", "torch"}:
        return True
    held = ()
    if kind in {tuple, list}:
        held = value
    elif kind is dict:
        held = list(value.values())
    elif kind.__module__.startswith("launcher.") and hasattr(kind, "__dataclass_fields__"):
        held = [getattr(value, name, None) for name in kind.__dataclass_fields__]
    return depth > 0 and any(carries(item, depth - 1) for item in held)


def profile(frame, event, value):
    """Note the function that was called with the value, or has returned it, and before it the one that called it."""
    global calls_within  # noqa: PLW0603 - one count per process
    code = frame.f_code
    if event not in {"call", "return"} or not code.co_filename.startswith(WALK["package"]):
        return
    if code.co_name == WALK["within"]:
        calls_within += 1 if event == "call" else -1
        if not calls_within:
            sys.setprofile(None)
    elif WALK["within"] and not calls_within:
        return
    call = code, frame.f_back and frame.f_back.f_code
    if call in seen or code.co_name.startswith("<"):
        return
    # When a function is called its locals are its arguments, with those of its closure or of its generator.
    if carries(list(frame.f_locals.values()) if event == "call" else value):
        seen.add(call)
        caller = frame.f_back
        while caller and not caller.f_code.co_filename.startswith(WALK["package"]):
            caller = caller.f_back
        with (HERE / "seen.txt").open("a", encoding="utf-8") as notes:  # lines of one call reach the file in one piece
            for each in (caller.f_code, code) if caller else (code,):
                notes.write(f"{os.getpid()}\t{each.co_filename}\t{each.co_name}\n")


def count_fork():
    """Stop noting in the first process at the fork in question."""
    global forks  # noqa: PLW0603 - one count per process
    forks += os.getpid() == first
    if forks == WALK["until_fork"] and os.getpid() == first:
        sys.setprofile(None)


if WALK["until_fork"]:
    first, forks = os.getpid(), 0
    os.register_at_fork(after_in_parent=count_fork)
threading.setprofile(profile)
sys.setprofile(profile)
