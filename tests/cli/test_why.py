"""`tlaunch why`."""

import json

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
from tests.programs import acted_run

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


def test_every_attempt_is_told(launcher, snapshot):
    """Culprit, place, reason, consequences; what the log of the last one ends with; why there was no other."""
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two")))
    run_dir.train_log(1).write_text("step 1\nlast words\x1b[2J\n")
    assert launcher.scene("why a", code=0) == snapshot


def test_json_has_every_verdict(launcher):
    acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two", "Traceback")))
    whole = json.loads(launcher.call("why", "a", "--json").stdout)
    assert [attempt["verdict"]["culprit"] for attempt in whole["attempts"]] == [0, 1]
    assert whole["attempts"][1]["verdict"]["failures"][0]["traceback"] == "Traceback"
    assert (whole["not_restarting"], whole["culprit"]) == ("it failed in the same way", 1)


def test_a_traceback_is_enough(launcher):
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two", "Traceback: deep")))
    run_dir.train_log(1).write_text("last words\n")
    shown = launcher.call("why", "a").stdout
    assert "  | Traceback: deep" in shown
    assert "last words" not in shown


def test_the_log_of_an_attempt_before_is_not_quoted(launcher):
    """Its lines say nothing of what the last attempt failed of."""
    run_dir = acted_run.make(launcher.runs / "a", failed_twice(last=verdict(1, "KeyError: two"), log_offset=10))
    run_dir.train_log(1).write_text("old words\nnew words\n")
    shown = launcher.call("why", "a").stdout
    assert "  | new words" in shown
    assert "old words" not in shown
    run_dir.train_log(1).write_text("old words\n")
    assert "old words" not in launcher.call("why", "a").stdout


def test_what_is_told_where_nothing_is_claimed(launcher, snapshot):
    """Without a verdict the order of ends; of a run that never began only why; a restart in vain behind its attempt."""
    came_not, stopping = NotBegun("server h2 did not come", "is it there?"), Stopping(Cause.FAILED, 1)
    ended = AgentEnded(Cause.FAILED, 1)
    acted_run.make(launcher.runs / "no_verdict", failed_twice())
    acted_run.make(launcher.runs / "never_began", [AgentStarted(AGENT, None, 2), came_not, stopping, ended])
    events = [
        AgentStarted(AGENT, None, 2), AttemptStarted(0, 1), RankStarted(0, 50), RankEnded(0, 50, 1),
        Judged(verdict(0, "ValueError: one")), Stopping(Cause.FAILED, 1, restarts=True), came_not, stopping, ended,
    ]  # fmt: skip
    acted_run.make(launcher.runs / "in_vain", events)
    assert launcher.scene("why no_verdict", "why never_began", "why in_vain", code=0) == snapshot


def test_a_run_that_goes_on_has_not_failed(launcher):
    with acted_run.playing(launcher.runs / "a"):
        assert "running" in launcher.call("why", "a").stdout.splitlines()[0]
    assert launcher.call("why", "a").stdout.startswith("a: stopped after")


def test_of_a_lost_run_the_last_that_is_known_is_told(launcher, snapshot):
    with acted_run.playing(launcher.runs / "a", "vanish") as process:
        process.wait(60)
        acted_run.RunDir(launcher.runs / "a").agent_log.write_text("Traceback\nOops\n")
        lost, last, *log = launcher.call("why", "a").stdout.splitlines()
    assert (last.endswith("2 of 2 ranks ran then"), [lost, *log]) == (True, snapshot)


def test_a_real_failure_is_explained(launcher):
    """The rank that failed, not the one that was ended for it."""
    launcher.run("run", "--devices", 2, "--", "sh", "-c", '[ "$RANK" = 0 ] || { echo sorry; exit 5; }; sleep 1000')
    done = launcher.call("why")
    assert done.stdout.splitlines()[2].startswith("rank 1: ")
    assert "exit code 5" in done.stdout
    assert "  | sorry" in done.stdout
