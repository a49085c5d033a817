"""Find the state of a run from its files and the processes that they name."""

import os
import signal
import subprocess
import time
from dataclasses import replace

import pytest

from launcher.core.events import AgentEnded, AgentStarted, AttemptStarted, Cause, RankEnded, RankStarted, Stopping
from launcher.core.machine.proc import ProcessId, identify
from launcher.core.run_report import Report
from launcher.runs import status
from launcher.runs.engine_ranks import note_process
from launcher.runs.progress import State
from launcher.runs.status import FIRST_EVENT_S, RankState, RunStatusReader, look, read_report, runs_going_on
from tests.conftest import PATIENCE_S
from tests.programs import acted_run
from tests.programs.acted_run import me, someone_gone


def report(cause, exit_code):
    return Report("a", 0, cause, exit_code, 10, 20, ())


def states(run_state):
    return [rank.state for rank in run_state.ranks]


def test_a_run_goes_on_while_its_agent_lives(tmp_path):
    with acted_run.playing(tmp_path / "a", "stopped"):
        state = look(acted_run.RunDir(tmp_path / "a"))
        assert (state.state, state.exit_code, state.ended_ns) == (State.RUNNING, None, None)
        assert states(state) == [RankState.RUNNING, RankState.STOPPED]
        assert all(rank.process.lives and rank.started_ns for rank in state.ranks)


def test_a_run_whose_agent_was_killed_is_lost(tmp_path):
    """Nobody is left to say so but the look at its processes; its last event is its end."""
    with acted_run.playing(tmp_path / "a", "vanish") as process:
        process.wait(PATIENCE_S)
        state = look(acted_run.RunDir(tmp_path / "a"))
    assert (state.state, state.exit_code) == (State.LOST, None)
    assert states(state) == [RankState.GONE] * 2
    assert state.ended_ns == state.progress.last_ns


@pytest.mark.parametrize("change", [{"host": "another"}, {"boot": "before"}], ids=lambda change: next(iter(change)))
def test_of_a_run_elsewhere_nothing_is_claimed(tmp_path, change):
    agent = replace(me(), **change)
    state = look(acted_run.make(tmp_path / "a", [AgentStarted(agent, None, 2), RankStarted(0, 1, 1)]))
    assert (state.state, state.host) == (State.ELSEWHERE, agent.host)
    assert (state.state.over, state.state.going_on) == (False, False)


def test_a_pid_that_is_used_again_is_no_sign_of_life(tmp_path):
    gone = someone_gone()
    state = look(acted_run.make(tmp_path / "a", [AgentStarted(gone, gone, 1), RankStarted(0, os.getpid(), 7)]))
    assert (state.state, states(state)) == (State.LOST, [RankState.GONE])


def test_a_run_without_a_word_is_starting_for_a_while(tmp_path):
    """Its launcher may have been killed in between: then it is lost."""
    run_dir = acted_run.make(tmp_path / "a")
    assert look(run_dir).state is State.STARTING
    old_s = time.time() - 2 * FIRST_EVENT_S
    os.utime(run_dir.run_json, (old_s, old_s))
    state = look(run_dir)
    assert (state.state, states(state)) == (State.LOST, [])


def test_a_report_is_enough(tmp_path):
    state = look(acted_run.make(tmp_path / "a", report=report(Cause.FAILED, 7)))
    assert (state.state, state.exit_code, state.elapsed_s) == (State.FAILED, 7, 1e-8)


def test_events_are_enough(tmp_path):
    events = [AgentStarted(someone_gone(), None, 1), AttemptStarted(0, 1), RankStarted(0, 9, 9), RankEnded(0, 9, -6)]
    run_dir = acted_run.make(tmp_path / "a", [*events, Stopping(Cause.FAILED, 1), AgentEnded(Cause.FAILED, 134)])
    state = look(run_dir)
    assert (state.state, state.exit_code, next(state.ranks).status) == (State.FAILED, 134, -signal.SIGABRT)
    assert state.elapsed_s == 5.0


def test_a_last_line_that_is_torn_is_read_when_it_is_whole(tmp_path):
    run_dir = acted_run.make(tmp_path / "a", [AgentStarted(me(), None, 2), RankStarted(0, 5, 5)])
    whole = run_dir.events.read_bytes()
    run_dir.events.write_bytes(whole[:-20])
    watch = RunStatusReader(run_dir)
    assert (watch.look().state, watch.look().progress.current.running) == (State.STARTING, 0)
    run_dir.events.write_bytes(whole)
    assert (watch.look().state, watch.look().progress.current.running) == (State.RUNNING, 1)


def test_strange_lines_are_passed_over(tmp_path):
    """Rubbish, other schemas and events of a later version; if there is nothing else, nothing is claimed."""
    run_dir = acted_run.make(tmp_path / "a", [AgentStarted(me(), None, 2)])
    strange = (
        b'\xff\xfe\0\n{"schema": 1, "time_ns": 1, "server_index": 0, "event": "Killing"}\n[]\n' + b"[" * 100_000 + b"\n"
    )
    known = run_dir.events.read_bytes()
    run_dir.events.write_bytes(strange + known + b'{"schema": 2, "time_ns": 1, "server_index": 0, "event": "New"}\n')
    assert look(run_dir).state is State.STARTING
    run_dir.events.write_bytes(strange)
    assert look(run_dir).state is State.UNKNOWN
    run_dir.events.unlink()
    run_dir.report.write_text('{"schema": 1}')
    assert look(run_dir).state is State.UNKNOWN


@pytest.mark.parametrize("count", [1 << 62, -1, 1 << 17])
def test_a_run_of_more_ranks_than_there_can_be(tmp_path, count):
    state = look(acted_run.make(tmp_path / "a", [AgentStarted(me(), None, 2)]))
    events = state.run_dir.events
    events.write_text(events.read_text().replace('"rank_count": 2', f'"rank_count": {count}'))
    state = look(state.run_dir)
    assert (state.state, states(state)) == (State.UNKNOWN, [])


def test_a_last_word_between_reading_and_looking_counts(tmp_path, monkeypatch):
    """An agent that has just gone is not taken for one that was killed."""
    run_dir = acted_run.make(tmp_path / "a", [AgentStarted(someone_gone(), None, 1)])

    def end(_process):
        acted_run.append(run_dir, AgentEnded(Cause.FINISHED, 0))
        return False

    monkeypatch.setattr(ProcessId, "lives", property(end))
    assert look(run_dir).state is State.FINISHED


@pytest.fixture
def end_during_look(monkeypatch):
    """Return a function that calls `end` after a report was looked for and not found, once."""

    def held_up_by(end):
        def held_up(run_dir):
            report = read_report(run_dir)
            monkeypatch.setattr(status, "read_report", read_report)
            end()
            return report

        monkeypatch.setattr(status, "read_report", held_up)

    return held_up_by


@pytest.mark.parametrize("wishes", [(), ("head",)], ids=["agent", "agent and head"])
def test_whoever_is_held_up_during_the_look_calls_no_good_end_lost(tmp_path, end_during_look, wishes):
    with acted_run.playing(tmp_path / "a", *wishes) as process:
        watch = RunStatusReader(acted_run.RunDir(tmp_path / "a"))
        end_during_look(lambda: (process.terminate(), process.wait(PATIENCE_S)))
        assert [watch.look().state for _ in range(2)] == [State.RUNNING, State.STOPPED]


def test_a_head_without_its_agent_is_ending_the_run(tmp_path, end_during_look):
    with subprocess.Popen(["sleep", "1000"]) as head:
        run_dir = acted_run.make(tmp_path / "a", [AgentStarted(someone_gone(), identify(head.pid), 1)])
        end_during_look(lambda: (head.kill(), head.wait()))
        assert [look(run_dir).state for _ in range(2)] == [State.ENDING, State.LOST]


def test_runs_that_go_on_are_found_newest_first(tmp_path):
    """A report says that a run is over, whatever else its files say."""
    with acted_run.playing(tmp_path / "b"), acted_run.playing(tmp_path / "a"):
        acted_run.make(tmp_path / "c").report.write_text("{}")
        assert [state.name for state in runs_going_on(tmp_path)] == ["a", "b"]
    assert runs_going_on(tmp_path) == ()
    assert runs_going_on(tmp_path / "missing") == ()


def make_of_engine(directory, ranks=2, per_server=2, age_s=0.0):
    run_dir = acted_run.make(directory, ranks=ranks, per_server=per_server, engine="Open MPI")
    os.utime(run_dir.run_json, (time.time() - age_s,) * 2)
    return run_dir


@pytest.mark.parametrize("age_s", [0, 2 * FIRST_EVENT_S])
def test_of_ranks_that_an_engine_started_only_the_engine_knows(tmp_path, age_s):
    """Neither that they start, however young the run is, nor that anything was lost; their number is known."""
    state = look(make_of_engine(tmp_path / "a", 3, 3, age_s))
    assert (state.state, state.engine, state.exit_code) == (State.UNWATCHED, "Open MPI", None)
    assert (state.state.going_on, state.state.over) == (False, False)
    assert states(state) == [RankState.UNWATCHED] * 3
    assert runs_going_on(tmp_path) == ()


def test_ranks_of_an_engine_are_seen_to_run_and_to_end(tmp_path):
    run_dir = make_of_engine(tmp_path / "a")
    watch = RunStatusReader(run_dir)
    with subprocess.Popen(["sleep", "1000"]) as one, subprocess.Popen(["sleep", "1000"]) as other:
        note_process(run_dir, 0, identify(one.pid))
        assert states(watch.look()) == [RankState.RUNNING, RankState.UNWATCHED]
        note_process(run_dir, 1, identify(other.pid))
        state = watch.look()
        assert (state.state, states(state)) == (State.UNWATCHED, [RankState.RUNNING] * 2)
        assert [going_on.name for going_on in runs_going_on(tmp_path)] == ["a"]
        one.kill()
        one.wait()
        state = watch.look()
        assert (state.state, states(state)) == (State.UNWATCHED, [RankState.GONE, RankState.RUNNING])
        other.kill()
    state = watch.look()
    assert (state.state, state.state.over, state.exit_code, state.engine) == (State.ENDED, True, None, "Open MPI")
    assert states(state) == [RankState.GONE] * 2
    assert runs_going_on(tmp_path) == ()


@pytest.mark.parametrize(("change", "expected", "rank"), [
    ({"boot": "before"}, State.ENDED, RankState.GONE),
    ({"host": "another"}, State.UNWATCHED, RankState.UNWATCHED),
], ids=["before the last start", "another machine"])  # fmt: skip
def test_of_an_engines_ranks_elsewhere_nothing_is_claimed(tmp_path, change, expected, rank):
    """What ran here before the machine's last start runs no more; what runs elsewhere may."""
    run_dir = make_of_engine(tmp_path / "a")
    note_process(run_dir, 0, someone_gone())
    note_process(run_dir, 1, replace(someone_gone(), **change))
    state = look(run_dir)
    assert (state.state, state.lives, states(state)) == (expected, False, [RankState.GONE, rank])


@pytest.mark.parametrize(
    ("ranks", "age_s", "expected"),
    [(2, 0.0, State.UNWATCHED), (2, 2 * FIRST_EVENT_S, State.ENDED), (3, 2 * FIRST_EVENT_S, State.UNWATCHED)],
    ids=["it may come", "it did not start", "another server's"],
)
def test_a_rank_of_an_engine_that_noted_nothing(tmp_path, ranks, age_s, expected):
    """It may be about to do so, or never did, or did it where nobody here can see it."""
    run_dir = make_of_engine(tmp_path / "a", ranks, age_s=age_s)
    note_process(run_dir, 0, someone_gone())
    assert look(run_dir).state is expected


def test_a_note_that_nobody_understands_is_none(tmp_path):
    run_dir = make_of_engine(tmp_path / "a", 4, 4)
    for rank, text in enumerate((b"", b"{", b"[1]", b'{"pid": 1}')):
        run_dir.process(rank).write_bytes(text)
    assert states(look(run_dir)) == [RankState.UNWATCHED] * 4


def test_one_servers_part_is_told_by_its_own_files(tmp_path):
    """Where no other server's files are: its ranks alone, by their global numbers, and its report."""
    made = acted_run.make(tmp_path / "a", ranks=4, per_server=2)
    part = acted_run.RunDir(made.root, 1)
    part.events.parent.mkdir()
    acted_run.append(part, AgentStarted(me(), None, 2), AttemptStarted(0, 1), RankStarted(3, os.getpid(), me().started))
    state = look(part)
    assert (state.state, state.part, state.progress.rank_count) == (State.RUNNING, (2, 3), 2)
    assert [(rank.global_rank, rank.state) for rank in state.ranks] == [(2, RankState.WAITING), (3, RankState.RUNNING)]
    assert [going_on.run_dir for going_on in runs_going_on(tmp_path)] == [part]
    part.report.write_text(report(Cause.FINISHED, 0).to_json())
    assert look(part).state is State.FINISHED
    assert look(made).part is None
