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
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(**{**vars(ROOMY), **found}))
    spec = SimpleNamespace(run_dir=tmp_path, ranks=Cluster.local(1).servers)
    judged = Judged(Verdict(None, Confidence.UNSURE, "r"))
    failed = told(1, RankStarted(0, 7), RankEnded(0, 7, 1), judged, AgentEnded(Cause.FAILED, 1))
    lines = list(summary.render(failed, spec, tmp_path))
    assert (f"the file system of {tmp_path} is full" in lines) == full


def closing_words(progress, tmp_path, ranks=(), *server):
    spec = SimpleNamespace(run_dir=tmp_path, ranks=ranks)
    return [line.replace(str(tmp_path), "<dir>") for line in summary.render(progress, spec, tmp_path, *server)]


def test_closing_words(tmp_path, snapshot):
    """A restart in vain after what it was for; who was lost is not called unborn; why nothing was started again."""
    failed = AgentEnded(Cause.FAILED, 1)
    lost = Judged(Verdict(None, Confidence.CERTAIN, "server h2 is gone", server="h2"))
    in_vain = told(
        1, RankStarted(0, 7), lost, RankEnded(0, 7, -15), NotBegun("server h2 did not come", "is it there?"), failed
    )
    lost_server = told(
        4, RankStarted(0, 7), RankStarted(1, 8), RankStarted(2, 9), lost, RankEnded(0, 7, -15), RankEnded(1, 8, -15), failed
    )  # fmt: skip
    coordinator = told(2, RankStarted(2, 7), RankEnded(2, 7, -15), AgentEnded(Cause.COORDINATOR_LOST, 1))
    again = [NotRestarting("it fails at once"), Judged(Verdict(None, Confidence.UNSURE, "r")), failed]
    restarts = {
        f"{count} restarts": told(1, *(AttemptStarted(number, 1) for number in range(1, count + 1)), *again)
        for count in (0, 2)
    }
    assert {
        "restart in vain": closing_words(in_vain, tmp_path),
        "a server lost": closing_words(lost_server, tmp_path),
        "the coordinator lost": closing_words(coordinator, tmp_path, (SimpleNamespace(server_id="h1"),)),
        **{name: closing_words(progress, tmp_path) for name, progress in restarts.items()},
    } == snapshot


@pytest.mark.parametrize("culprit", [0, 2], ids=["elsewhere", "here"])
def test_one_server_of_several_speaks_for_its_own_ranks(tmp_path, culprit, snapshot):
    """Ranks 2 and 3 are here: of the others there is neither a process nor a log."""
    verdict = Verdict(culprit, Confidence.CERTAIN, "r", (Failure(culprit, Role.CAUSE, "x", "y", status=1),))
    ended = (RankEnded(2, 7, 1), RankEnded(3, 8, -15), AgentEnded(Cause.FAILED, 1))
    progress = told(2, RankStarted(2, 7), RankStarted(3, 8), Judged(verdict), *ended)
    ranks = [
        SimpleNamespace(server_id=f"h{rank // 2}", server_index=rank // 2, device_id=rank % 2) for rank in range(4)
    ]
    assert closing_words(progress, tmp_path, ranks, 1) == snapshot
