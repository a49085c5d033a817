"""The closing words of a run."""

import os
from types import SimpleNamespace

import pytest

from launcher.cli import summary
from launcher.core.events import AgentEnded, Cause, Judged, NotBegun, RankEnded, RankStarted, Stamped
from launcher.core.records import Cluster
from launcher.core.verdict import Confidence, Verdict
from launcher.runs.progress import Progress

ROOMY = SimpleNamespace(f_bavail=10**6, f_frsize=4096, f_files=10**6, f_favail=10**5)


def failed():
    return told(
        1, RankStarted(0, 7), RankEnded(0, 7, 1), Judged(Verdict(None, Confidence.UNSURE, "r")), AgentEnded(Cause.FAILED, 1),
    )  # fmt: skip


def told(rank_count, *events):
    progress = Progress(rank_count)
    for number, event in enumerate(events):
        progress.take(Stamped(number, 0, event))
    return progress


@pytest.mark.parametrize(
    ("found", "full"),
    [({}, False), ({"f_bavail": 15}, True), ({"f_favail": 0}, True), ({"f_files": 0, "f_favail": 0}, False)],
    ids=["roomy", "no bytes", "no files", "files are not counted"],
)
def test_a_full_file_system_is_named(tmp_path, monkeypatch, found, full):
    """Where a run failed: its logs may not say why."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**vars(ROOMY), **found}))
    spec = SimpleNamespace(run_dir=tmp_path, ranks=Cluster.local(1).servers)
    lines = list(summary.render(failed(), spec, tmp_path))
    assert (f"the file system of {tmp_path} is full" in lines) == full


def test_a_restart_in_vain_is_told_after_what_it_was_for(tmp_path):
    """The failure first, then why nothing came after it."""
    lost = Judged(Verdict(None, Confidence.CERTAIN, "server h2 is gone", server="h2"))
    progress = told(
        1, RankStarted(0, 7), lost, RankEnded(0, 7, -15), NotBegun("server h2 did not come", "is it there?"),
        AgentEnded(Cause.FAILED, 1),
    )  # fmt: skip
    lines = list(summary.render(progress, SimpleNamespace(run_dir=tmp_path), tmp_path))
    assert "server h2 is gone" in " ".join(lines[:2])
    assert lines[-3:] == [
        "it was to start again, and could not:", "error: server h2 did not come", "hint: is it there?",
    ]  # fmt: skip


def test_ranks_of_a_server_that_was_lost_are_not_said_to_be_unborn(tmp_path):
    """They were started; how they ended nobody has heard."""
    verdict = Judged(Verdict(None, Confidence.CERTAIN, "gone", server="h2"))
    progress = told(
        4, RankStarted(0, 7), RankStarted(1, 8), RankStarted(2, 9), verdict, RankEnded(0, 7, -15), RankEnded(1, 8, -15),
        AgentEnded(Cause.FAILED, 1),
    )  # fmt: skip
    lines = list(summary.render(progress, SimpleNamespace(run_dir=tmp_path), tmp_path))
    assert "the others: 2 by SIGTERM (signal 15), 1 lost with their server, 1 never started" in lines


def test_a_run_whose_coordinator_is_gone_has_not_ended_well(tmp_path):
    """As the launcher of another server sees it."""
    progress = told(2, RankStarted(2, 7), RankEnded(2, 7, -15), AgentEnded(Cause.HEAD_LOST, 1))
    (line,) = summary.render(progress, SimpleNamespace(run_dir=tmp_path), tmp_path)
    ways = "1 by SIGTERM (signal 15), 1 never started"
    assert line == f"error: the launcher that coordinated the run is gone; its ranks here: {ways}; logs in {tmp_path}"
