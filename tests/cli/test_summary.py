"""The closing words of a run."""

import os
from types import SimpleNamespace

import pytest

from launcher.cli.text import summary
from launcher.core.events import (
    AgentEnded,
    AttemptStarted,
    Cause,
    Judged,
    NotBegun,
    NotRestarting,
    RankEnded,
    RankStarted,
    TimestampedEvent,
)
from launcher.core.records import Cluster
from launcher.core.verdict import Confidence, Failure, Role, Verdict
from launcher.runs.progress import Progress

ROOMY = SimpleNamespace(f_bavail=10**6, f_frsize=4096, f_files=10**6, f_favail=10**5)


def failed():
    return told(
        1, RankStarted(0, 7), RankEnded(0, 7, 1), Judged(Verdict(None, Confidence.UNSURE, "r")), AgentEnded(Cause.FAILED, 1),
    )  # fmt: skip


def told(rank_count, *events):
    progress = Progress(rank_count)
    for number, event in enumerate(events):
        progress.take(TimestampedEvent(number, 0, event))
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
    progress = told(2, RankStarted(2, 7), RankEnded(2, 7, -15), AgentEnded(Cause.COORDINATOR_LOST, 1))
    spec = SimpleNamespace(run_dir=tmp_path, ranks=(SimpleNamespace(server_id="h1"),))
    (line,) = summary.render(progress, spec, tmp_path)
    ways = "1 by SIGTERM (signal 15), 1 never started"
    assert (
        line == f"error: server h1, whose launcher coordinated the run, is lost; ranks here: {ways}; logs in {tmp_path}"
    )


@pytest.mark.parametrize(("attempts", "words"), [(0, "not restarted"), (2, "restarted 2 times, and not again")])
def test_why_nothing_was_started_again_is_told(tmp_path, attempts, words):
    """With how often it was, if it was at all."""
    started = (AttemptStarted(number, 1) for number in range(1, attempts + 1))
    events = (*started, NotRestarting("it fails at once"), Judged(Verdict(None, Confidence.UNSURE, "r")))
    lines = list(
        summary.render(told(1, *events, AgentEnded(Cause.FAILED, 1)), SimpleNamespace(run_dir=tmp_path), tmp_path)
    )
    assert f"{words}: it fails at once" in lines


@pytest.mark.parametrize("culprit", [0, 2])
def test_one_server_of_several_speaks_for_its_own_ranks(tmp_path, culprit):
    """Ranks 2 and 3 are here: of the others there is neither a process nor a log."""
    verdict = Verdict(culprit, Confidence.CERTAIN, "r", (Failure(culprit, Role.CAUSE, "x", "y", status=1),))
    progress = told(
        2, RankStarted(2, 7), RankStarted(3, 8), Judged(verdict), RankEnded(2, 7, 1), RankEnded(3, 8, -15),
        AgentEnded(Cause.FAILED, 1),
    )  # fmt: skip
    ranks = [
        SimpleNamespace(server_id=f"h{rank // 2}", server_index=rank // 2, device_id=rank % 2) for rank in range(4)
    ]
    lines = list(summary.render(progress, SimpleNamespace(run_dir=tmp_path, ranks=ranks), tmp_path, 1))
    if culprit == 2:
        assert any(
            line.startswith(f"log of rank 2: {tmp_path}/device2/train.log, which cannot be read") for line in lines
        )
        assert "the others here: 1 by SIGTERM (signal 15)" in lines
    else:
        assert lines[2:] == [
            "  server h0, device 0, exit code 1", "log of rank 0: on server h0, which has the logs of all ranks",
            "ranks here: 1 with exit code 1, 1 by SIGTERM (signal 15)",
        ]  # fmt: skip
