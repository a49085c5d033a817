"""What a forked rank owns at its end is finalised, and what it draws by lot is its own."""

import sys

import pytest

UNFLUSHED = """
import json, os, tempfile
out = open(f"result.{os.environ['RANK']}", "w")
kept = tempfile.NamedTemporaryFile(dir=".")
class Kept:
    def __del__(self):
        os.write(1, b"finalised\\n")
one = Kept()
def say(text):
    out.write(text)
say("important")
json.held = open(f"held.{os.environ['RANK']}", "w")
json.held.write("by a preloaded module")
"""


def logs(launcher, source, *options, code=0):
    script = launcher.directory / "program.py"
    script.write_text(source)
    launcher.run("run", "--devices", 2, *options, "--", sys.executable, script, code=code)
    return [(launcher.latest / f"device{rank}" / "train.log").read_text() for rank in range(2)]


@pytest.mark.parametrize("options", [[], ["--no-preload"]])
def test_files_are_flushed_and_objects_finalised(launcher, options):
    """As at the end of any Python program, although what was imported before the fork is left as it is where it can be."""
    assert logs(launcher, UNFLUSHED, *options) == ["finalised\n"] * 2
    assert [(launcher.directory / f"result.{rank}").read_text() for rank in (0, 1)] == ["important"] * 2
    assert [(launcher.directory / f"held.{rank}").read_text() for rank in (0, 1)] == ["by a preloaded module"] * 2
    assert list(launcher.directory.glob("tmp*")) == []


FAILING = """
import json, os, sys
json.held = open(f"held.{os.environ['RANK']}", "w")
json.held.write("by a preloaded module")
del json
sys.exit(3 if os.environ["RANK"] == "1" else 0)
"""


@pytest.mark.parametrize("options", [[], ["--no-preload"]])
def test_files_of_preloaded_modules_are_flushed_after_a_failure(launcher, options):
    """Those of the rank that failed; the other may be ended before it has any."""
    logs(launcher, FAILING, *options, code=3)
    assert (launcher.directory / "held.1").read_text() == "by a preloaded module"


@pytest.mark.slow
def test_unseeded_ranks_draw_different_numbers(launcher):
    pytest.importorskip("torch")
    source = "import random, numpy, torch; print(torch.rand(1).item(), numpy.random.rand(), random.random())"
    drawn = [log.split() for log in logs(launcher, source)]
    assert all(len({rank[kind] for rank in drawn}) == 2 for kind in range(3)), drawn
