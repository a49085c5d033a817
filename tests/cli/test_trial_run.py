"""The command by which the doctor measures links is one that `tlaunch run` takes."""

import os
import subprocess
import sys
import tempfile

import pytest

from launcher.cli.commands.doctor.trial_run import (
    OWN_DIRECTORY,
    Remains,
    blamed_server,
    guarded,
    kept_run,
    measuring,
    trial_options,
    with_kept_path,
)
from launcher.cli.launch.prepare import prepare
from launcher.cli.run_options import RunOptions
from launcher.core.events import Cause
from launcher.core.records import Device, Server
from launcher.core.run_report import Attempt, Report
from launcher.core.verdict import Confidence, Verdict
from launcher.doctor.probe_handler import OWN_RUNS


@pytest.mark.parametrize(("engine", "by_hand"), [("mpi", False), ("slurm", False), ("hand", True), (None, True)])
def test_what_is_for_servers_started_by_hand(engine, by_hand, tmp_path):
    """No engine's run is told of it; every run that measures ends itself with a verdict when its ranks hang."""
    examination = {"engine": engine, "server": "h1", "coordinator_port": 29450, "env": ()}
    options = measuring(trial_options(examination, tmp_path, 29451))
    assert (options.server, options.coordinator_port) == (("h1", 29451) if by_hand else (None, None))
    assert 30 <= options.hang_timeout <= 60


def test_nothing_is_said_of_mpi_that_concerns_a_measurement_of_ours(table_of):
    """It needs none, and `tlaunch run` is told so, as it cannot see it of an installed package."""
    options = measuring({"engine": "mpi", "rank_table": table_of({"127.0.0.1": [0]}), "env": ()})
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TLAUNCH_", "SLURM_"))}
    assert prepare(options, environment).notes == ()


def test_a_run_that_starts_after_its_doctor_was_killed_removes_what_that_had_made(tmp_path):
    parent, directory = tmp_path / "runs", tmp_path / f"{OWN_DIRECTORY}x"
    runs_dir = parent / f"{OWN_RUNS}x"
    for each in (runs_dir, directory):
        each.mkdir(parents=True)
    (directory / "table.json").write_text("{}")
    remains = Remains(runs_dir, parent=True, directory=directory)
    command = guarded(RunOptions(runs_dir=runs_dir, command=(sys.executable, "-c", "pass")), remains)
    between = [sys.executable, "-c", "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))", *command]
    done = subprocess.run(between, capture_output=True, text=True, timeout=60, check=False)  # no child of this one
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("confidence", "culprit", "server", "expected"), [
    (Confidence.CERTAIN, 3, None, 1), (Confidence.LIKELY, None, "h1", 0), (Confidence.UNSURE, 3, None, None),
    (Confidence.LIKELY, None, None, None),
])  # fmt: skip
def test_the_server_that_a_trial_run_failed_of(tmp_path, confidence, culprit, server, expected):
    verdict = Verdict(culprit, confidence, "it failed", server=server)
    attempt = Attempt(0, 29500, 0, 1, Cause.FAILED, (), verdict)
    report = Report("links", 0, Cause.FAILED, 1, 0, 1, (attempt,))
    (tmp_path / "report.json").write_text(report.to_json())
    servers = [Server(f"h{index + 1}", tuple(Device(one, 2 * index + one) for one in range(2))) for index in range(2)]
    assert blamed_server(tmp_path, servers) == expected
    assert blamed_server(tmp_path / "nowhere", servers) is None


def test_what_a_failed_run_wrote_is_kept_where_the_doctor_removes_nothing(launcher, tmp_path, monkeypatch):
    """And named in what it complained of, however that named it; links that lead nowhere do no harm."""
    run_dir = launcher.write(f"runs/{OWN_RUNS}x/20260101-links/run.json", "{}").parent
    launcher.write(run_dir / "device0/train.log", "why")
    (run_dir / "nowhere").symlink_to("gone")
    (run_dir.parent / "latest").symlink_to(run_dir.name)
    (temporary := tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(tmp_path)
    kept = kept_run(run_dir)
    assert kept.is_relative_to(temporary)
    assert (kept / "device0" / "train.log").read_text() == "why"
    said = f"logs in runs/{OWN_RUNS}x/20260101-links, and {run_dir}/device0/train.log"
    assert with_kept_path(said, run_dir, kept) == f"logs in {kept}, and {kept}/device0/train.log"
    assert with_kept_path(said, run_dir, None) == said
    assert kept_run(tmp_path / "nothing") is None
    os.mkfifo(run_dir / "no file")  # stands for one that is removed while the run is copied
    assert kept_run(run_dir) is None
    assert list(temporary.iterdir()) == [kept.parent]
