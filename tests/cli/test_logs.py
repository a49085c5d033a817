"""`tlaunch logs` over runs that the real command made."""

import json
import os
import signal
import subprocess

import pytest

CHATTER = """
import os, time
rank = int(os.environ["RANK"])
for step in range(6):
    print(f"step {step} loss {1 / (step + 1) + rank / 100:.3f}")
if rank == 2: print("retrying")
print("done")
"""
FAILING = CHATTER + "if rank == 1: raise ValueError('no such word')\ntime.sleep(0.3)\n"


@pytest.fixture
def ran(launcher):
    """A run of three ranks; gives a function that asks for its logs."""

    def run(source, *options, devices=3):
        (launcher.directory / "program.py").write_text(source)
        launcher.run("run", "--devices", devices, *options, "--", "python", "program.py")
        return lambda *arguments: launcher.run("logs", *arguments)

    return run


def test_every_line_of_every_rank_is_shown_with_its_rank(ran):
    """Rank after rank, in the order in which each wrote."""
    lines = ran(CHATTER)().stdout.splitlines()
    expected = [
        *[f"[{rank}] step {step} loss {1 / (step + 1) + rank / 100:.3f}" for rank in (0, 1) for step in range(6)],
    ]
    assert [line for line in lines if "step" in line and "[2]" not in line] == expected
    assert lines[-2:] == ["[2] retrying", "[2] done"]


def test_ranks_are_chosen(ran):
    """By number, range, server, or as the one that failed first; one alone needs no prefix."""
    logs = ran(FAILING)
    assert logs("--rank", "1", "-n", 1).stdout == "ValueError: no such word\n"
    assert logs("--rank", "first-failed", "-n", 1).stdout == "ValueError: no such word\n"
    assert logs("--rank", "0,2", "-n", 1).stdout == "[0] done\n[2] done\n"
    assert logs("--server", "0", "--rank", "1-2", "-n", 0).stdout == ""


@pytest.mark.parametrize(("arguments", "words"), [
    (["--rank", "7"], "which are 0-2"),
    (["--rank", "x"], "ranks are chosen as 0,3-5 or all"),
    (["--rank", "first-failed"], "no rank of this run has failed"),
    (["--server", "10.0.0.1"], "servers are"),
    (["--grep", "("], "no regular expression"),
    (["--level", "LOUD"], "levels are"),
    (["--since", "yesterday"], "is no time"),
    (["--prefix", "{rank} "], "fields are {global_rank}"),
    (["--prefix", "{"], "is no template"),
    (["--merge", "--collapse"], "choose one"),
    (["--exit-code"], "needs --follow"),
    (["--follow", "--env"], "--env cannot be followed"),
    (["no-such-run"], "no-such-run"),
])  # fmt: skip
def test_what_means_nothing_is_refused(ran, arguments, words):
    """With exit code 2, and what would mean something."""
    done = ran("print()")(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr


def test_what_ranks_say_alike_is_one_line(ran):
    """Numbers become ranges; what one rank says alone stands by itself, in its place."""
    assert ran(CHATTER)("--collapse").stdout.splitlines() == [
        *[f"[0-2] step {step} loss {1 / (step + 1):.3f}..{1 / (step + 1) + 0.02:.3f}" for step in range(6)],
        "[2] retrying",
        "[0-2] done",
    ]


def test_lines_are_searched_with_those_around_them(ran):
    """As grep does it, of each rank by itself."""
    logs = ran(CHATTER)
    assert logs("--grep", "retrying", "-B", 1, "-A", 1).stdout.splitlines() == [
        "[2] step 5 loss 0.187", "[2] retrying", "[2] done",
    ]  # fmt: skip
    assert logs("--grep", "step (0|5)", "-A", 1, "--rank", 0).stdout.splitlines() == [
        "step 0 loss 1.000", "step 1 loss 0.500", "--", "step 5 loss 0.167", "done",
    ]  # fmt: skip


def test_what_was_raised_is_shown_once_with_its_ranks(ran):
    """The first traceback of each rank, without what came before it."""
    told = ran("import os\nprint('begin')\nraise [ValueError, KeyError][os.environ['RANK'] == '1']('why')")(
        "--errors"
    ).stdout
    assert [line for line in told.splitlines() if not line.startswith("  ")] == ["ranks 0,2:", "", "rank 1:"]
    assert "  ValueError: why" in told
    assert "begin" not in told
    assert ran("print('well')")("--errors").stdout == "no traceback in these logs\n"


TIMED = """
import os
rank = int(os.environ["RANK"])
for second in range(rank, 6, 2):
    print(f"2026-11-21 12:00:0{second} {['INFO', 'WARNING'][second % 2]} second {second}")
    print("  and more")
"""


def test_errors_as_json(ran):
    """One object for each error, with the ranks that raised it."""
    done = ran("import os; raise [ValueError, KeyError][os.environ['RANK'] == '1']('why')")("--errors", "--json")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert all(set(error) == {"global_ranks", "type", "message", "where", "text"} for error in told)
    assert told[0]["text"].startswith("Traceback")


def test_times_of_lines_merge_and_bound(ran):
    """Lines without a time stay behind the one before."""
    logs = ran(TIMED, devices=2)
    assert logs("--merge", "--prefix", "").stdout.splitlines()[::2] == [
        f"2026-11-21 12:00:0{second} {['INFO', 'WARNING'][second % 2]} second {second}" for second in range(6)
    ]
    between = logs("--since", "2026-11-21T12:00:02", "--until", "2026-11-21T12:00:03", "--prefix", "{time} ").stdout
    assert between.splitlines() == [
        "12:00:02 2026-11-21 12:00:02 INFO second 2", "12:00:02   and more",
        "12:00:03 2026-11-21 12:00:03 WARNING second 3", "12:00:03   and more",
    ]  # fmt: skip
    assert logs("--until", "2026-11-21T12:00:03").stderr == ""
    assert {line.split()[3] for line in logs("--level", "warning").stdout.splitlines()[::2]} == {"WARNING"}


def test_lines_that_tell_no_time_are_missed(ran):
    """Where a time was asked for: a word says so."""
    done = ran(CHATTER)("--since", "10m", "--rank", "0-1")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "lines of ranks 0-1 tell no time: left out\n"
    done = ran(CHATTER)("--merge", "--rank", "0-1")
    assert "lines of ranks 0-1 tell no time: they are shown in turn" in done.stderr


def test_json_tells_rank_attempt_and_place(ran):
    """One object a line; a restart's lines belong to the next attempt."""
    logs = ran("import os; print('hello'); raise SystemExit(os.environ['TLAUNCH_ATTEMPT'] == '0')", "--max-restarts", 1,
               devices=1)  # fmt: skip
    told = [json.loads(line) for line in logs("--json").stdout.splitlines()]
    assert [(line["text"], line["attempt"]) for line in told] == [
        ("hello", 0), ("--- attempt 1 ---", 0), ("hello", 1),
    ]  # fmt: skip
    assert [line["offset"] for line in told] == [0, 6, 24]


def test_variables_of_a_rank_are_shown_by_the_same_command(ran):
    """With secrets masked, as in env.log."""
    assert "RANK_ID=1\n" in ran("print()")("--env", "--rank", 1).stdout


def test_a_log_cannot_act_on_the_terminal(ran):
    """Titles, cursor movements and rubbish are made harmless; colours go where nobody sees them."""
    source = r"import os; os.write(1, b'\x1b]0;title\x07a\x1b[2Jb \x1b[31mred\x1b[0m \xff\x00\r\ndone 10%\rdone 20%\n')"
    done = ran(source, devices=1)()
    assert done.stdout.splitlines() == ["ab red �^@", "done 20%"]
    assert "\x1b[31m" in ran(source, devices=1)("--color").stdout


def test_following_ends_with_the_run(launcher, wait_until):
    """With every line of it, in order, and with its exit code if that is wanted."""
    (launcher.directory / "program.py").write_text(
        "import time\nfor n in range(20):\n    print(n, flush=True)\n    time.sleep(0.05)\nraise SystemExit(7)"
    )
    launcher.run("run", "--detach", "--devices", 2, "--", "python", "program.py")
    done = launcher.run("logs", "-f", "--exit-code")
    assert done.returncode == 7
    for rank in (0, 1):
        of_rank = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")]
        assert of_rank == [f"[{rank}] {number}" for number in range(20)]


@pytest.mark.parametrize("options", [[], ["--merge"], ["--collapse"]])
def test_whoever_follows_may_leave(launcher, options):
    """A closed pipe, and Ctrl-C, end it quietly; the run goes on."""
    (launcher.directory / "program.py").write_text(
        "import time\nwhile True:\n    print('on', flush=True)\n    time.sleep(0.01)"
    )
    process = launcher.start("run", "--", "python", "program.py")
    launcher.wait_ready(1, "on")
    reader, writer = os.pipe()
    follower = launcher.start("logs", "-f", *options, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert os.read(reader, 2)
    os.close(reader)
    assert (follower.wait(60), follower.stderr.read()) == (0, b"")
    follower = launcher.start("logs", "-f", *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert follower.stdout.read(2)
    follower.send_signal(signal.SIGINT)
    assert (follower.wait(60), follower.stderr.read().strip()) == (130, b"")
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
