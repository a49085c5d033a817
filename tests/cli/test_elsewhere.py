"""Runs are found from a directory that has none."""

import json
import os

import pytest

from launcher.cli.commands.ps import to_lines
from launcher.runs.registry import register
from launcher.runs.status import look
from tests import checkpoints
from tests.programs import acted_run

from .conftest import read_until
from .test_chosen_run import make_failed


@pytest.fixture
def places(launcher, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(launcher.directory / "state"))
    for place, name in (("one", "20260101-000000-mine"), ("two", "20260102-000000-other")):
        (launcher.directory / place).mkdir()
        make_failed(launcher.directory / place / "runs" / name)
        register(launcher.directory / place / "runs")
    (launcher.directory / "none").mkdir()
    return Places(launcher, {})


class Places:
    def __init__(self, launcher, env):
        self.launcher, self.env = launcher, env

    def call(self, place, *typed, **options):
        return self.launcher.call(*typed, cwd=self.launcher.directory / place, env=self.env, **options)

    def runs(self, place):
        return self.launcher.directory / place / "runs"


def test_a_run_notes_where_it_was_begun(places):
    there = places.launcher.directory / "new"
    there.mkdir()
    argv = places.launcher.argv("run", "-n", 1, "--", "true")
    places.launcher.ended(argv, cwd=there, env={"TMPDIR": str(places.launcher.directory)}, code=0)
    name = (there / "runs" / "latest").resolve().name
    assert "no run in runs has this name" in places.call("none", "status", name, code=2).stderr  # it is temporary
    (places.launcher.directory / "temporary").mkdir()
    places.launcher.ended(argv, cwd=there, env={"TMPDIR": str(places.launcher.directory / "temporary")}, code=0)
    assert str(there / "runs") in places.call("none", "status", name, code=0).stderr


def test_a_run_is_found_by_name_from_anywhere(places):
    for reference in ("mine", "20260101", "20260101-000000-mine"):
        done = places.call("none", "status", reference, code=0)
        assert "20260101-000000-mine" in done.stdout
        assert str(places.runs("one")) in done.stderr
        assert "note: " not in places.call("one", "status", reference, code=0).stderr
        assert str(places.runs("one")) in places.call("two", "logs", reference, code=0).stderr


def test_a_name_in_several_directories_is_wrong_usage(places):
    make_failed(places.runs("two") / "20260101-000000-mine")
    assert str(places.runs("two") / "20260101-000000-mine") in places.call("none", "status", "mine", code=2).stderr
    assert "note: " not in places.call("two", "status", "mine", code=0).stderr


def test_a_checkpoint_is_found_from_anywhere(places):
    """Without a name, that of the newest run that has one; only here if it might be removed."""
    path = places.runs("one") / "20260101-000000-mine" / "checkpoints" / "step-5"
    checkpoints.write(path, {"weight": (2,)}, checkpoints.numbered({"weight": (2,)}), step=5)
    make_failed(places.runs("one") / "20260103-000000-new")
    done = places.call("one", "ckpt", "show", code=0)
    assert str(path) in done.stdout
    assert "20260101-000000-mine, the newest run with a checkpoint" in done.stderr
    for typed in (["show"], ["verify"], ["merge", "-o", "x"]):
        assert str(places.runs("one") / "20260101-000000-mine") in places.call("none", "ckpt", *typed, code=2).stderr
    for typed in (["ls"], ["ls", "mine"], ["verify", "mine"], ["verify", path.parent]):
        assert str(path) in places.call("none", "ckpt", *typed, code=0).stdout
    for name in ("latest", "mine", "20260101-000000-mine"):
        assert "runs contains no runs" in places.call("none", "ckpt", "prune", name, "--keep", 1, code=2).stderr
    typed = ("ckpt", "prune", path.parent, "--keep", 1, "--dry-run")
    assert places.call("none", *typed, code=0).stdout.startswith("would free")
    assert "no readable run found in runs" in places.call("none", "ckpt", "prune", "--keep", 1, code=2).stderr
    told = places.call("one", "ckpt", "prune", "--keep", 1, "--dry-run", code=2).stderr
    assert "runs/20260103-000000-new: this run has no checkpoint" in told


def test_the_latest_is_that_of_all_where_there_is_none_here(places):
    latest = make_failed(places.runs("one") / "20260103-000000-new").root
    for typed in (["why"], ["status"], ["report", "latest"], ["status", "latest~0"]):
        done = places.call("none", *typed, code=0)
        assert latest.name in done.stdout
        assert str(places.runs("one")) in done.stderr
    assert latest.name not in places.call("two", "why", code=0).stdout


@pytest.mark.parametrize("typed", [["--runs-dir", "runs"], ["--runs-dir", "."]])
def test_a_directory_that_is_named_is_meant(places, typed):
    assert places.call("none", "status", "mine", *typed).returncode == 2
    assert places.call("none", "ps", "--all", *typed, code=0).stdout == ""
    places.env["TLAUNCH_RUNS_DIR"] = "runs"
    assert places.call("none", "status", "mine").returncode == 2


def test_ps_lists_active_runs_of_all_directories_where_there_is_none_here(places):
    with acted_run.playing(places.runs("one") / "a"), acted_run.playing(places.runs("two") / "b"):
        from_none = json.loads(places.call("none", "ps", "--json", code=0).stdout)
        assert {run["directory"] for run in from_none} == {str(places.runs("one") / "a"), str(places.runs("two") / "b")}
        shown = places.call("none", "ps", code=0).stdout
        assert all(str(places.runs(name)) in shown for name in ("one", "two"))
        assert [run["name"] for run in json.loads(places.call("one", "ps", "--json", code=0).stdout)] == ["a"]
        everywhere = places.call("one", "ps", "--everywhere", "--json", "--runs-dir", "runs", code=0)
        assert {run["name"] for run in json.loads(everywhere.stdout)} == {"a", "b"}


@pytest.mark.parametrize("width", [200, 80, 60])
def test_a_narrow_terminal_shows_the_beginning_of_a_directory(places, width):
    state = look(acted_run.RunDir(places.runs("one") / "20260101-000000-mine"))
    header, line = to_lines([state], width, placed=True)
    assert max(map(len, (header, line))) <= width
    assert "DIRECTORY" in header
    assert "20260101-000000-mine" in line


def test_what_cannot_be_undone_wants_the_only_active_run(places):
    with acted_run.playing(places.runs("one") / "a") as one, acted_run.playing(places.runs("two") / "b") as two:
        refused = places.call("none", "stop", code=2).stderr
        assert all(f"/{place}/runs/{run}" in refused for place, run in (("one", "a"), ("two", "b")))
        assert "note: " in places.call("none", "stop", "b", code=0).stderr
        assert "b is not running" in places.call("two", "stop", code=0).stderr
        assert (two.wait(), one.poll()) == (0, None)
        assert f"tlaunch stop {places.runs('one') / 'a'}" in places.call("none", "stop", code=2).stderr
        assert one.poll() is None
        places.call("none", "stop", "a", code=0)
        assert one.wait() == 0


@pytest.mark.parametrize("typed", [["stop"], ["stop", "latest"], ["rerun"], ["rerun", "latest~0"]], ids=" ".join)
def test_what_acts_on_a_run_elsewhere_wants_its_name(places, typed):
    ran = places.launcher.directory / "ran"
    there = places.launcher.directory / "one"
    if typed[0] == "rerun":
        argv = places.launcher.argv("run", "-q", "-n", 1, "--", "touch", ran)
        places.launcher.ended(argv, cwd=there, env={"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}, code=0)
        ran.unlink()
        refused = places.call("none", *typed, code=2).stderr
        name = (there / "runs" / "latest").resolve().name
        assert f"use `tlaunch rerun {there / 'runs' / name}`" in refused
        assert refused.partition("hint")[2] in places.call("none", "rerun", name[:-1], code=2).stderr
        assert not ran.exists()
        assert "touch" in places.call("none", *typed, "--dry-run", code=0).stdout
        return
    with acted_run.playing(there / "runs" / "a") as process:
        assert f"use `tlaunch stop {there / 'runs' / 'a'}`" in places.call("none", *typed, code=2).stderr
        assert process.poll() is None


@pytest.mark.parametrize("reference", ["20260104", "nightly", "night"])
def test_a_prefix_or_name_does_not_stop_a_run_elsewhere(places, reference):
    run = places.runs("one") / "20260104-000000-nightly"
    with acted_run.playing(run) as process:
        for place in ("none", "two"):
            assert f"use `tlaunch stop {run}`" in places.call(place, "stop", reference, code=2).stderr
        assert process.poll() is None
        places.call("none", "stop", run.name if reference == "nightly" else run, code=0)
        assert process.wait() == 0


def test_only_a_named_run_elsewhere_is_waited_for(places):
    assert f"use `tlaunch wait {places.runs('two')}/" in places.call("none", "wait", code=2).stderr
    assert "no such run" in places.call("none", "wait", "mine").stderr


def test_a_model_elsewhere_must_be_named(places):
    run = places.runs("one") / "20260101-000000-mine"
    (run / "model").mkdir()
    (run / "model" / "config.json").write_text('{"program": "transformer", "recipe": {}}')
    places.launcher.write("none/a.fr", "a\n")
    for typed in (["translate"], ["evaluate", "--source", "a.fr", "--reference", "a.fr"]):
        refused = places.call("none", *typed, code=2).stderr
        assert "no run in runs has a translation model" in refused
        assert f"add {run}" in refused


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 1), (b"\n", 1), (b"y\n", 0)])
def test_a_person_is_asked_about_a_run_elsewhere(places, answer, code):
    with acted_run.playing(places.runs("one") / "a") as agent:
        ours, theirs = os.openpty()
        argv = places.launcher.argv("stop")
        cwd, state = places.launcher.directory / "none", {"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
        process = places.launcher.begin(["env", "-C", cwd, *argv], env=state, stdin=theirs, stderr=theirs)
        os.close(theirs)
        shown = read_until(ours, b"[y/N]")
        os.write(ours, answer)
        read_until(ours, None)
        os.close(ours)
        assert (process.wait(), agent.poll() is None) == (code, code == 1)
        assert str(places.runs("one")).encode() in shown.replace(b"\r\n", b"")


def test_a_link_to_a_run_elsewhere_is_elsewhere(places):
    """Whoever may write to a directory of runs can make one."""
    with acted_run.playing(places.runs("one") / "a") as agent:
        (places.launcher.directory / "none" / "runs").mkdir()
        (places.launcher.directory / "none" / "runs" / "linked").symlink_to(places.runs("one") / "a")
        assert str(places.runs("one") / "a") in places.call("none", "stop", code=2).stderr
        assert agent.poll() is None
        places.call("none", "stop", "linked", code=0)


def test_nothing_active_anywhere_is_said(places):
    assert "no run is active" in places.call("none", "stop", code=2).stderr


def test_without_any_run_the_error_is_about_here(places, launcher):
    places.env["XDG_STATE_HOME"] = "/dev/null/none"
    assert "runs contains no runs" in places.call("none", "status", code=2).stderr
    assert places.call("none", "ps", code=0).stdout == ""
