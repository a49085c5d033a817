"""Room for open files: a process raises its own limit as far as it needs, and may."""

import subprocess
import sys

import pytest

from launcher.core.system import SPARE

PROGRAM = """
import resource, sys
from launcher.core.system import make_room

soft, hard, files, opened = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
room = make_room(files)
held = [open("/dev/null") for _ in range(opened)]
print(room, *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def room_in_child(soft, hard, files, opened=0):
    """What a process with such limits is told, and its limits afterwards; it opens as many files as it is to."""
    command = [sys.executable, "-c", PROGRAM, *map(str, (soft, hard, files, opened))]
    told = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    return told[0] == "True", int(told[1]), int(told[2])


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        # high enough: nothing is raised without need, nor ever lowered
        *((files, (True, 200, 400)) for files in (0, 100, 200 - SPARE)),
        # raised as far as needed; the hard limit stays
        *((files, (True, files + SPARE, 400)) for files in (201 - SPARE, 300, 400 - SPARE)),
        # more than is allowed: what is allowed is taken
        *((files, (False, 400, 400)) for files in (401 - SPARE, 10_000)),
    ],
)
def test_a_limit_is_raised_as_far_as_is_needed_and_allowed(files, expected):
    """As many files can then be opened, beside the few that are open."""
    assert room_in_child(200, 400, files, opened=min(files, 400 - SPARE)) == expected


def test_what_is_already_as_high_as_allowed_stays():
    assert room_in_child(400, 400, 10_000) == (False, 400, 400)
