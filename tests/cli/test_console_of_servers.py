"""The console of a run: of all of its servers, and of one server's part."""

import signal
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.cli.text.console import Console
from launcher.core.events import COORDINATOR, Awaiting, Cause, RankEnded, RankStarted, Stopping, TimestampedEvent
from launcher.core.records import Cluster, Device, Layout, RankSpec, RunSpec, Server

RANKS = tuple(
    RankSpec(rank, rank % 2, f"h{rank // 2}", rank // 2, rank % 2, ("true",), {}) for rank in range(4)
)  # fmt: skip
CLUSTER = Cluster(tuple(Server(f"h{index}", (Device(0, 2 * index), Device(1, 2 * index + 1))) for index in (0, 1)))


@pytest.fixture(name="console")
def _console(tmp_path):
    for rank in range(4):
        (tmp_path / f"device{rank}").mkdir()
        (tmp_path / f"device{rank}" / "train.log").write_text(f"line of {rank}" + "\n" * (rank < 3))

    def make(server_index, shows):
        spec = RunSpec("run", tmp_path, CLUSTER, Layout(4), RANKS, Path("/"), "h0", 1, console=shows)
        return Console(spec, server_index)

    return make


def watch(console, *events):
    for number, (server_index, event) in enumerate(events):
        console.event(TimestampedEvent(number, server_index, event))
    console.tick()
    console.finish(tuple)


@pytest.mark.parametrize(("server_index", "shows", "lines"), [
    (None, "rank0", "line of 0\n"), (1, "rank0", "line of 2\n"),
    (1, "all", "[2] line of 2\n[3] line of 3\n"),
    (None, "all", "[0] line of 0\n[1] line of 1\n[2] line of 2\n[3] line of 3\n"),
    (None, "collapse", "[0-3] line of 0..3\n"), (1, "collapse", "[2-3] line of 2..3\n"), (1, "none", ""),
], ids=str)  # fmt: skip
def test_only_the_server_s_own_ranks_are_shown(console, capfdbinary, server_index, shows, lines):
    watch(console(server_index, shows))
    assert capfdbinary.readouterr().out.decode() == lines


@pytest.mark.parametrize(("shows", "words"), [("rank0", "2 ranks started in "), ("none", "")])
def test_a_server_counts_its_own_ranks(console, capfd, shows, words):
    here = console(1, shows)
    watch(here, (1, RankStarted(2, 5)), (1, RankStarted(3, 6)))
    assert here.progress.rank_count == 2
    assert capfd.readouterr().err[: len(words) or None] == words


def test_ranks_that_end_at_once_were_started(console, capfd):
    started = [(0, RankStarted(rank, 5 + rank)) for rank in range(4)]
    ended = [(0, RankEnded(rank, 5 + rank, 0)) for rank in range(4)]
    watch(console(None, "none"), *started, *ended)
    assert capfd.readouterr().err == ""
    watch(console(None, "status"), *started[:2], *ended[:2], *started[2:], *ended[2:])
    assert capfd.readouterr().err.startswith("4 ranks started in ")


def test_who_is_awaited_is_said(console, capfd, snapshot):
    watch(console(None, "none"), (COORDINATOR, Awaiting(("h1",), 2.0, 90.0)), (COORDINATOR, Awaiting((), 3.0)))
    assert capfd.readouterr().err == snapshot


@pytest.mark.parametrize("interrupted", [False, True], ids=["elsewhere", "here"])
def test_who_ends_the_run_from_elsewhere_is_said(console, capfd, interrupted, snapshot):
    here = console(None, "none")
    here.event(TimestampedEvent(0, COORDINATOR, Stopping(Cause.STOPPED, 1.0, signal.SIGTERM, server="h1")))
    if interrupted:
        here.interrupted(signal.SIGTERM, at_once=False)
    here.tick()
    here.tick()
    here.finish(tuple)
    assert capfd.readouterr().err == snapshot


def test_a_console_that_is_held_up_shows_the_rest_all_the_same(console, capfd, monkeypatch):
    """Only a stdout that takes nothing is not waited for when a run has failed."""
    here = console(None, "all")
    here.event(TimestampedEvent(0, 0, Stopping(Cause.FAILED, 1.0)))
    now_s = chain([0.0], repeat(1000.0))
    monkeypatch.setattr("launcher.cli.text.console.time", SimpleNamespace(monotonic=lambda: next(now_s)))
    here.finish(tuple)
    assert capfd.readouterr() == ("".join(f"[{rank}] line of {rank}\n" for rank in range(4)), "")
