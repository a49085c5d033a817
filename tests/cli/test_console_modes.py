"""--console: what of the ranks' lines is shown while a run goes on."""

import signal
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


def test_lines_are_collapsed_over_ranks(launcher, suspend):
    """What ranks say alike is one line; who says something else is seen. Nobody looks before all have said it."""
    held = f"import os, time\nprint('begun', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)\n{SAYS}"
    shown = launcher.directory / "shown"
    with shown.open("w") as stdout:
        argv = ["run", "--devices", 4, "--console", "collapse", "--", sys.executable, "-c", held]
        process = launcher.start(*argv, stdout=stdout)
    launcher.wait_ready(4, "begun")
    suspend(process.pid)
    (launcher.directory / "go").touch()
    launcher.wait_ready(4, "no newline")
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 0
    lines = shown.read_text().splitlines()
    assert [line for line in lines if "begun" not in line] == [
        *[f"[0-3] step {step} loss {9.5 + step}..{9.53 + step:.2f}" for step in range(3)],
        "[2] retrying",
        "[0-3] no newline",
    ]
    assert all(launcher.said_by(rank, lines)[0] == "begun" for rank in range(4))


def test_nothing_is_shown_but_the_end(shown):
    """`none` says where the logs are, once the run has ended."""
    done = shown("--console", "none")
    (line,) = done.stderr.splitlines()
    assert (done.stdout, "4 ranks ended well" in line) == ("", True)
