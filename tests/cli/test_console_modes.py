"""--console: what of the ranks' lines is shown while a run goes on."""

import json
import re
import sys

import pytest

SAYS = """
import os, sys, time
for step in range(3):
    print(f"step {step} loss {9.5 + step + int(os.environ['RANK']) / 100}", flush=True)
if os.environ["RANK"] == "2":
    print("retrying", flush=True)
sys.stdout.write("no newline")
"""


@pytest.fixture
def shown(launcher):
    """What a run of four ranks shows on stdout and stderr."""

    def run(*options, program=SAYS):
        done = launcher.run("run", "--devices", 4, *options, "--", sys.executable, "-c", program)
        assert done.returncode == 0, done.stderr
        return done

    return run


def test_the_first_rank_is_shown_by_default(shown):
    """As it is, without a prefix."""
    expected = ["step 0 loss 9.5", "step 1 loss 10.5", "step 2 loss 11.5", "no newline"]
    assert shown().stdout.splitlines() == expected
    assert shown("--console", "rank0").stdout.splitlines() == expected


def test_all_ranks_are_shown(shown):
    """Each line with its rank, in the order of that rank."""
    lines = shown("--console", "all").stdout.splitlines()
    for rank in range(4):
        own = [line.removeprefix(f"[{rank}] ") for line in lines if line.startswith(f"[{rank}]")]
        expected = [f"step {step} loss {9.5 + step + rank / 100}" for step in range(3)]
        assert own == [*expected, *(["retrying"] if rank == 2 else []), "no newline"]
    assert len(lines) == 4 * 4 + 1


def test_lines_are_collapsed_over_ranks(shown, launcher):
    """What ranks say alike is one line, or a few where some say it much later; who says something else is seen."""
    lines = shown("--console", "collapse").stdout.splitlines()
    for rank in range(4):
        said = [re.sub(r"(\d\.5).*", r"\1", line) for line in launcher.said_by(rank, lines)]
        steps = [f"step {step} loss {9.5 + step}" for step in range(3)]
        assert said == [*steps, *(["retrying"] if rank == 2 else []), "no newline"]
    assert "[2] retrying" in lines
    assert len(lines) < 3 * 4


def test_nothing_is_shown_but_the_end(shown):
    """`none` says where the logs are, once the run has ended."""
    done = shown("--console", "none")
    (line,) = done.stderr.splitlines()
    assert (done.stdout, "4 ranks ended well" in line) == ("", True)


def test_a_status_tells_how_far_the_run_has_come(shown):
    """From the heartbeats of ranks, without their lines."""
    beats = """
import json, os, pathlib, time
for step in range(30):
    beat = {"step": step, "loss": 2.5, "tokens_per_s": 12345.0}
    pathlib.Path(os.environ["TLAUNCH_HEARTBEAT_FILE"]).write_text(json.dumps(beat))
    print("not shown")
    time.sleep(0.1)
"""
    done = shown("--console", "status", program=beats)
    assert done.stdout == ""
    assert "loss 2.5000, 12,345 tokens/s" in done.stderr


def test_a_dry_run_tells_what_would_be_shown(launcher):
    """It is part of what a run is."""
    done = launcher.run("run", "--console", "collapse", "--dry-run", "--json", "--", "true")
    assert json.loads(done.stdout)["console"] == "collapse"
