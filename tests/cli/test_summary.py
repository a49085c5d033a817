"""The closing words of a run."""

import os
from types import SimpleNamespace

import pytest

from launcher.cli import summary
from launcher.core.events import AgentEnded, Cause, Judged, RankEnded, RankStarted, Stamped
from launcher.core.records import Cluster
from launcher.core.verdict import Confidence, Verdict
from launcher.runs.progress import Progress

ROOMY = SimpleNamespace(f_bavail=10**6, f_frsize=4096, f_files=10**6, f_favail=10**5)


def failed():
    progress = Progress(1)
    events = [
        RankStarted(0, 7), RankEnded(0, 7, 1), Judged(Verdict(None, Confidence.UNSURE, "r")), AgentEnded(Cause.FAILED, 1),
    ]  # fmt: skip
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
