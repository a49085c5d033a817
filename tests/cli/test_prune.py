"""`tlaunch prune`."""

import os
import shutil
import signal
import time
from dataclasses import replace

import pytest

from launcher.core.events import AgentEnded, AgentStarted, Cause, RankEnded, RankStarted
from launcher.core.machine.proc import identify
from launcher.core.run_report import Report
from launcher.runs.registry import register
from launcher.runs.removal import Removal
from launcher.runs.status import FIRST_EVENT_S
from tests.programs import acted_run

from .conftest import read_until

DAY_NS = 24 * 3600 * 10**9


def make(runs, name, cause=Cause.FINISHED, *, agent=None, over_ns=2, **fields):
    """A run that is over, a second older than the one made before it."""
    gone = replace(identify(os.getpid()), started=1)
    events = [AgentStarted(agent or gone, None, 2), RankStarted(0, 9), RankEnded(0, 9, 0), AgentEnded(cause, 0)]
    report = Report(name, 0, cause, 0, 1, over_ns, ())
    run_dir = acted_run.make(runs / name, events, report=report, **fields)
    made_ns = 10**18 - len(list(runs.iterdir())) * 10**9
    os.utime(run_dir.run_json, ns=(made_ns, made_ns))
    return run_dir.root


def continuing(root):
    return {"continues": {"checkpoint": f"{root}/checkpoints/step-5", "step": 5, "run": root.name}}


def left_in(runs):
    return {path.name for path in runs.iterdir()} if runs.is_dir() else set()


def test_runs_that_are_over_are_removed(launcher):
    for name in ("d", "c", "b", "a"):
        make(launcher.runs, name, Cause.FAILED if name in "bc" else Cause.FINISHED)
    assert launcher.call("prune", "--keep", 4, "--yes", code=0).stdout == ""
    assert launcher.call("prune", "--state", "failed", "--keep", 1, "--dry-run", code=0).stdout == "b\n"
    assert left_in(launcher.runs) == {"a", "b", "c", "d"}
    done = launcher.call("prune", "--state", "failed", "--keep", 1, "--yes", code=0)
    assert (done.stdout, left_in(launcher.runs)) == ("b\n", {"a", "c", "d"})
    assert launcher.call("prune", "--keep", 0, "-y", code=0).stdout.split() == ["d", "c", "a"]
    assert left_in(launcher.runs) == set()
    assert launcher.call("prune", "--keep", 0, code=0).stdout == ""


def test_the_age_of_a_run_is_that_of_its_end(launcher):
    now_ns = time.time_ns()
    for name, days in (("new", 6), ("old", 8)):
        make(launcher.runs, name, over_ns=now_ns - days * DAY_NS)
    assert launcher.call("prune", "--older-than", "7d", "--yes", code=0).stdout == "old\n"


@pytest.mark.parametrize(
    "typed",
    [[], ["--yes"], ["--keep", "-1"], ["--older-than", "x"], ["--older-than", "30", "--yes"], ["--state", "running"]],
)
def test_nothing_is_removed_unless_it_is_said_what(launcher, typed):
    make(launcher.runs, "a")
    assert launcher.call("prune", *typed).returncode == 2
    assert left_in(launcher.runs) == {"a"}


def test_what_may_be_active_stays(launcher):
    make(launcher.runs, "over")
    gone = replace(identify(os.getpid()), started=1)
    acted_run.make(launcher.runs / "there", [AgentStarted(replace(gone, host="another"), None, 2)])
    acted_run.make(launcher.runs / "before", [AgentStarted(replace(gone, boot="another"), None, 2)])
    starting = acted_run.make(launcher.runs / "starting")
    then = time.time() + FIRST_EVENT_S  # however long the others take to start
    os.utime(starting.run_json, (then, then))
    acted_run.make(launcher.runs / "external", engine="mpirun")
    acted_run.make(launcher.runs / "strange").events.write_text("?\n")
    with (
        acted_run.playing(launcher.runs / "running"),
        acted_run.playing(launcher.runs / "orphan", "vanish") as vanished,
    ):
        vanished.wait()
        done = launcher.call("prune", "--keep", 0, "--yes", code=0)
    assert set(done.stdout.split()) == {"over", "before", "orphan"}
    assert left_in(launcher.runs) == {"there", "starting", "external", "strange", "running"}
    assert {line.split()[1] for line in done.stderr.splitlines() if line.startswith("kept")} == {
        *("there:", "external:", "strange:")
    }


def test_a_run_that_another_goes_on_from_stays_with_it(launcher):
    make(launcher.runs, "a", Cause.FAILED, **continuing(launcher.runs / "b"))
    make(launcher.runs, "b", **continuing(launcher.runs / "c"))
    make(launcher.runs, "c")
    assert launcher.call("prune", "--state", "finished", "--yes", code=0).stdout == ""
    assert set(launcher.call("prune", "--keep", 0, "--dry-run", code=0).stdout.split()) == {"a", "b", "c"}
    shutil.rmtree(launcher.runs / "a")
    assert launcher.call("prune", "--keep", 1, "--yes").stdout == ""
    here = ("--runs-dir", ".")  # however the directory is called
    assert launcher.call("prune", "--keep", 0, "--yes", *here, cwd=launcher.runs, code=0).stdout.split() == ["b", "c"]


def test_a_run_of_another_directory_keeps_what_it_goes_on_from(launcher):
    root = make(launcher.runs, "a")
    make(launcher.directory / "others", "b", **continuing(root))
    (temporary := launcher.directory / "temporary").mkdir()
    states = {"XDG_STATE_HOME": str(launcher.directory / "state"), "TMPDIR": str(temporary)}
    launcher.run("run", "--devices", 1, "--runs-dir", "others", "--", "true", env=states, code=0)
    assert "b was resumed from it" in launcher.call("prune", "--keep", 0, "--yes", env=states, code=0).stderr
    shutil.rmtree(launcher.directory / "others")
    assert launcher.call("prune", "--keep", 0, "--yes", env=states, code=0).stdout == "a\n"


@pytest.mark.parametrize("path", ["model", "checkpoints/step-5"])
def test_a_run_keeps_the_run_whose_model_it_started_from(launcher, path):
    root = make(launcher.runs, "a")
    started = {"options": {"init_from": str(root / path)}}
    removal = Removal(launcher.runs, (root,))
    acted_run.make(launcher.runs / "b", engine="mpirun", **started)  # it may be active
    assert removal.remove(root) == "run b started from its model"
    said = launcher.call("prune", "--keep", 0, "--yes", code=0).stderr
    assert "kept a: run b started from its model" in said


def test_a_run_that_begins_meanwhile_keeps_what_it_goes_on_from(launcher):
    root = make(launcher.runs, "a")
    removal = Removal(launcher.runs, (root,))
    begun = make(launcher.runs, "b", **continuing(root))
    assert "b" in removal.remove(root)
    shutil.rmtree(begun)
    assert removal.remove(root) is None
    assert left_in(launcher.runs) == set()


@pytest.mark.parametrize("is_known", [False, True])
def test_so_does_one_in_another_directory(launcher, monkeypatch, is_known):
    monkeypatch.setenv("XDG_STATE_HOME", str(launcher.directory / "state"))
    root, others = make(launcher.runs, "a"), launcher.directory / "others"
    known = make(others, "b") if is_known else None
    removal = Removal(launcher.runs, (root, *([known] if known else ())))
    begun = make(others, "c", **continuing(root))
    register(others)
    assert "c" in removal.remove(root)
    shutil.rmtree(begun)
    assert removal.remove(root) is None


def test_a_removal_that_another_finishes_is_one_of_this_command(launcher, monkeypatch):
    """The other one, which takes it for what an interrupted removal has left, does not print its name."""
    removed = shutil.rmtree

    def removed_by_another(path, **options):
        removed(path, ignore_errors=True)
        removed(path, **options)

    make(launcher.runs, "a")
    monkeypatch.setattr(shutil, "rmtree", removed_by_another)
    assert launcher.call("prune", "--keep", 0, "--yes", code=0).stdout == "a\n"
    assert left_in(launcher.runs) == set()


def test_nothing_beside_the_runs_is_touched(launcher):
    make(launcher.runs, "b")
    inside = make(launcher.runs, "a")
    outside = make(launcher.directory / "elsewhere", "c", over_ns=1)
    os.utime(outside / "run.json", ns=(1, 1))
    kept = launcher.write("elsewhere/data/file", "x")
    (inside / "data").symlink_to(kept.parent)
    (launcher.runs / "linked").symlink_to(outside)
    (launcher.runs / "notes").mkdir()
    (launcher.runs / "latest").symlink_to("a")
    assert launcher.call("prune", "--state", "finished", "--dry-run", code=0).stdout.split() == ["b", "a"]
    launcher.call("prune", "--keep", 1, "--yes", code=0)
    assert left_in(launcher.runs) == {"b", "linked", "notes", "latest"}
    assert (launcher.runs / "latest").readlink().name == "b"
    assert "linked" in launcher.call("prune", "--keep", 0, "--yes", code=0).stderr
    assert left_in(launcher.runs) == {"linked", "notes", "latest"}
    assert (launcher.runs / "latest").readlink().name == "linked"
    assert kept.is_file()
    assert (outside / "run.json").is_file()


def test_a_removal_that_was_interrupted_is_finished_by_the_next(launcher, monkeypatch):
    make(launcher.runs, "a")
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda _path, **_options: os.kill(os.getpid(), signal.SIGINT))
        assert launcher.call("prune", "--keep", 0, "--yes").returncode == 130
    assert len(left_in(launcher.runs)) == 1
    make(launcher.runs, "b")
    assert launcher.call("prune", "--keep", 0, "--yes", code=0).stdout == "b\n"
    assert left_in(launcher.runs) == set()


def test_what_cannot_be_read_stops_nothing(launcher):
    (make(launcher.runs, "b") / "run.json").write_text("{")
    (make(launcher.runs, "a") / "report.json").write_text("{")
    assert set(launcher.call("prune", "--keep", 0, "--yes", code=0).stdout.split()) == {"a", "b"}
    assert left_in(launcher.runs) == set()


def test_runs_of_another_user_stay(launcher, monkeypatch):
    """Whose directories may be renamed where all write to one, but whose files may not be removed."""
    make(launcher.runs, "a")
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert "another user" in launcher.call("prune", "--keep", 0, "--yes", code=0).stderr
    assert left_in(launcher.runs) == {"a"}


def test_a_person_is_asked(launcher):
    make(launcher.runs, "a")
    assert launcher.call("prune", "--keep", 0).returncode == 2
    for answer, code, left in ((b"n\n", 1, {"a"}), (b"y\n", 0, set())):
        ours, theirs = os.openpty()
        process = launcher.start("prune", "--keep", 0, stdin=theirs, stderr=theirs)
        os.close(theirs)
        read_until(ours, b"[y/N]")
        os.write(ours, answer)
        read_until(ours, None)
        os.close(ours)
        assert (process.wait(), left_in(launcher.runs)) == (code, left)
