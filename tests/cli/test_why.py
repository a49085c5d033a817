"""`tlaunch why`."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from launcher.core.events import (
    AgentEnded,
    AgentStarted,
    AttemptStarted,
    Cause,
    Judged,
    NotBegun,
    NotRestarting,
    RankEnded,
    RankStarted,
    Stopping,
)
from launcher.core.proc import ProcessId
from launcher.core.verdict import Confidence, Failure, Role, Verdict

SPEC = spec_from_file_location("acted_run", Path(__file__).parents[1] / "programs" / "acted_run.py")
acted_run = module_from_spec(SPEC)
SPEC.loader.exec_module(acted_run)

AGENT = ProcessId(1, 1, "another", "boot")


def verdict(culprit, what, traceback=None):
    other = Failure(1 - culprit, Role.CONSEQUENCE, "ConnectionError: lost", "it lost its peer", 2, status=1)
    cause = Failure(culprit, Role.CAUSE, what, "it was first by 3 ms", 1, "a.py:3 in f", 1, traceback)
    return Verdict(culprit, Confidence.LIKELY, "r", (cause, other))


def failed_twice(*, last=None, log_offset=0):
    """Two attempts, the second with the verdict `last`, and no third."""
    return [
        AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankEnded(0, 50, 1),
        Judged(verdict(0, "ValueError: one")), Stopping(Cause.FAILED, 1, restarts=True),
        AttemptStarted(1, 2), RankStarted(1, 61, 0, log_offset), RankEnded(1, 61, 1), *([Judged(last)] if last else []),
        NotRestarting("it failed in the same way"), Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 1),
    ]  # fmt: skip


def test_every_attempt_is_told(launcher):
    """Culprit, place, reason, consequences; what the log of the last one ends with; why there was no other."""
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two")))
    run_dir.train_log(1).write_text("step 1\nlast words\x1b[2J\n")
    done = launcher.run("why", "a")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "a: failed after 12 s with exit code 1",
        "",
        "attempt 0 failed after 4.0 s:",
        "rank 0: ValueError: one, at a.py:3 in f",
        "  likely: it was first by 3 ms",
        "  server 10.0.0.1, device 4, process 50, exit code 1",
        "consequences:",
        "  rank 1: ConnectionError: lost (it lost its peer)",
        "log of rank 0: runs/a/device0/train.log",
        "",
        "attempt 1 failed after 6.0 s:",
        "rank 1: KeyError: two, at a.py:3 in f",
        "  likely: it was first by 3 ms",
        "  server 10.0.0.1, device 5, process 61, exit code 1",
        "consequences:",
        "  rank 0: ConnectionError: lost (it lost its peer)",
        "log of rank 1: runs/a/device1/train.log",
        "  | step 1",
        "  | last words",
        "",
        "not restarted: it failed in the same way",
    ]


def test_json_has_every_verdict(launcher):
    """As it was recorded."""
    acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two", "Traceback")))
    whole = json.loads(launcher.run("why", "a", "--json").stdout)
    assert [attempt["verdict"]["culprit"] for attempt in whole["attempts"]] == [0, 1]
    assert whole["attempts"][1]["verdict"]["failures"][0]["traceback"] == "Traceback"
    assert (whole["not_restarting"], whole["culprit"]) == ("it failed in the same way", 1)


def test_a_traceback_is_enough(launcher):
    """The end of the log would say it again."""
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two", "Traceback: deep")))
    run_dir.train_log(1).write_text("last words\n")
    shown = launcher.run("why", "a").stdout
    assert "  | Traceback: deep" in shown
    assert "last words" not in shown


def test_the_log_of_an_attempt_before_is_not_quoted(launcher):
    """Its lines say nothing of what the last attempt failed of."""
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two"), log_offset=10))
    run_dir.train_log(1).write_text("old words\nnew words\n")
    shown = launcher.run("why", "a").stdout
    assert "  | new words" in shown
    assert "old words" not in shown
    run_dir.train_log(1).write_text("old words\n")
    assert "old words" not in launcher.run("why", "a").stdout


def test_without_a_verdict_the_order_of_ends_is_told(launcher):
    """And nothing is claimed."""
    acted_run.make(launcher.runs / "a", failed_twice())
    shown = launcher.run("why", "a").stdout
    assert "no judgement was recorded; ranks ended in this order:\n  rank 1: exit code 1\n" in shown


def test_a_run_that_never_began_has_nothing_to_judge(launcher):
    """Only why."""
    refused = NotBegun("server h2 did not come", "is it there?")
    events = [AgentStarted(AGENT, None, 2), refused, Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 1)]
    acted_run.make(launcher.runs / "a", events)
    assert launcher.run("why", "a").stdout.splitlines()[1:] == ["error: server h2 did not come", "hint: is it there?"]


def test_a_restart_in_vain_stands_behind_the_attempt_that_failed(launcher):
    """With its verdict."""
    events = [
        AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankEnded(0, 50, 1),
        Judged(verdict(0, "ValueError: one")), Stopping(Cause.FAILED, 1, restarts=True),
        NotBegun("server h2 did not come"), Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 1),
    ]  # fmt: skip
    acted_run.make(launcher.runs / "a", events)
    lines = launcher.run("why", "a").stdout.splitlines()
    assert lines[2] == "rank 0: ValueError: one, at a.py:3 in f"
    assert lines[-2:] == ["it was to start again, and could not:", "error: server h2 did not come"]


def test_a_run_that_goes_on_has_not_failed(launcher):
    """Nor has one that ended well, or was stopped."""
    with acted_run.playing(launcher.runs / "a"):
        shown = launcher.run("why", "a").stdout
        assert shown.startswith("a: still running for")
        assert shown.endswith("; nothing failed\n")
    assert launcher.run("why", "a").stdout.startswith("a: stopped after")


def test_of_a_lost_run_the_last_that_is_known_is_told(launcher):
    """How many ranks ran, and the traceback of the agent if it has left one."""
    with acted_run.playing(launcher.runs / "a", "vanish") as process:
        process.wait(60)
        acted_run.RunDir(launcher.runs / "a").agent_log.write_text("Traceback\nOops\n")
        lines = launcher.run("why", "a").stdout.splitlines()
    assert lines[0] == "a: lost: launcher and agent went away without a last word"
    assert lines[1].endswith("2 of 2 ranks ran then")
    assert lines[2:] == ["  the end of agent.log:", "  | Traceback", "  | Oops"]


def test_a_real_failure_is_explained(launcher):
    """The rank that failed, not the one that was ended for it."""
    launcher.run("run", "--devices", 2, "--", "sh", "-c", '[ "$RANK" = 0 ] || { echo sorry; exit 5; }; sleep 1000')
    done = launcher.run("why")
    assert done.stdout.splitlines()[2].startswith("rank 1: ")
    assert "exit code 5" in done.stdout
    assert "  | sorry" in done.stdout
