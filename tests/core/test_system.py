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


@pytest.mark.parametrize("files", [0, 100, 200 - SPARE])
def test_a_limit_that_is_high_enough_stays(files):
    """Nothing is raised without need, nor ever lowered."""
    assert room_in_child(200, 400, files) == (True, 200, 400)


@pytest.mark.parametrize("files", [201 - SPARE, 300, 400 - SPARE])
def test_a_limit_is_raised_as_far_as_is_needed(files):
    """As many files can then be opened, beside whatever else is open; the hard limit stays."""
    assert room_in_child(200, 400, files, opened=files) == (True, files + SPARE, 400)


@pytest.mark.parametrize("files", [401 - SPARE, 10_000])
def test_more_than_is_allowed(files):
    """It is told, and what is allowed is taken, so that as many as can be are opened."""
    assert room_in_child(200, 400, files, opened=400 - SPARE) == (False, 400, 400)
    assert room_in_child(400, 400, files) == (False, 400, 400)
