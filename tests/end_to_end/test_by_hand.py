"""One run on two servers, started by hand on each: it ends well, fails, hangs, is stopped, loses a server."""

import os
import re
import signal
import time

import pytest

from launcher.cluster.launcher_loop import SAME_REQUEST_S
from launcher.core.events import AgentStarted, AttemptStarted, Cause, Judged, Leftovers, RankEnded
from launcher.core.machine.proc import stat

from .conftest import kill_all

READY = "print('ready', flush=True)"
WAIT = "while not os.path.exists('go'): time.sleep(0.02)"
FOR_EVER = "time.sleep(1000)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"

pytestmark = [pytest.mark.slow]


def test_a_run_on_two_servers_ends_well(servers):
    """Ranks of both meet at one address and port, know their server, and nothing of the coordinator."""
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    show = f"print(*[os.environ[name] for name in {names}], *[name for name in os.environ if 'COORDINATOR' in name])"
    first, second = servers.both(command=servers.python(show, "time.sleep(0.2)"), console="all")
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    report = servers.report()
    port = report.attempts[0].master_port
    expected = [f"{rank} {rank % 2} {rank // 2} 4 127.0.0.1 {port}\n" for rank in range(4)]
    assert [servers.log(rank) for rank in range(4)] == expected
    assert sorted(servers.shown(first).splitlines()) == [f"[{rank}] {line[:-1]}" for rank, line in enumerate(expected)]
    assert sorted(servers.shown(second).splitlines()) == [f"[{rank}] {expected[rank][:-1]}" for rank in (2, 3)]
    assert (report.cause, report.exit_code) == (Cause.FINISHED, 0)
    assert [sorted(ended.global_rank for ended in one.attempts[0].exits) for one in
            (report, servers.report(0), servers.report(1))] == [[0, 1, 2, 3], [0, 1], [2, 3]]  # fmt: skip


def test_a_time_limit_ends_the_ranks_of_both_servers(servers):
    first, second = servers.both("--timeout", 5, command=servers.python(FOR_EVER))
    assert servers.end(first, second) == [124, 124], servers.said(first) + servers.said(second)
    for process in (first, second):
        assert "\ntime limit of 5 s reached; stopped after " in servers.said(process)
    assert (servers.report().cause, servers.report(1).cause) == (Cause.TIMED_OUT, Cause.TIMED_OUT)


def test_a_failure_starts_all_ranks_again(servers):
    """On both servers, at another port, after which nothing of the first attempt is left; even of rank 1, which had ended."""
    again = "if os.environ['TLAUNCH_ATTEMPT'] == '1': sys.exit(0)"
    program = servers.python(
        "print(os.environ['MASTER_PORT'], flush=True)", again, "open(f'r{rank}', 'w')", "if rank == 1: sys.exit(0)",
        "while rank == 3 and not all(os.path.exists(f'r{other}') for other in range(3)): time.sleep(0.01)",
        "if rank == 3: time.sleep(0.5); sys.exit(9)", FOR_EVER,
    )  # fmt: skip
    first, second = servers.both("--max-restarts", 2, command=program)
    assert servers.end(first, second) == [0, 0], servers.said(first) + servers.said(second)
    ports = [event.master_port for event in servers.events(AttemptStarted)]
    assert len(set(ports)) == 2
    for rank in range(4):
        assert servers.log(rank) == f"{ports[0]}\n--- attempt 1 ---\n{ports[1]}\n"
    assert [attempt.cause for attempt in servers.report().attempts] == [Cause.FAILED, Cause.FINISHED]
    assert servers.report().attempts[0].verdict.culprit == 3
    for process in (first, second):
        assert "restart 1 of 2" in servers.said(process)


def test_a_server_whose_ranks_ended_well_waits_for_the_others(servers):
    """And hears of the failure that comes later, so that its launcher can tell of it, and exits as the failed rank did."""
    program = servers.python(
        "if rank >= 2: sys.exit(0)", READY, WAIT, "if rank == 0: print('last words'); sys.exit(5)", FOR_EVER
    )
    first, second = servers.both(command=program)
    servers.wait_ready(ranks=[0, 1])
    servers.wait_until(lambda: {ended.global_rank for ended in servers.events(RankEnded)} == {2, 3}, "the second's end")
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [5, 5]
    assert servers.report().cause is Cause.FAILED
    statuses = {ended.global_rank: ended.status for ended in servers.report().attempts[0].exits}
    assert statuses == {0: 5, 1: -signal.SIGTERM, 2: 0, 3: 0}
    for process in (first, second):
        assert "error: rank 0: exit code 5" in servers.said(process)
        assert "| last words" in servers.said(process)
    assert [servers.report(server).attempts[0].verdict.culprit for server in (None, 0, 1)] == [0] * 3


def test_a_server_whose_ranks_ended_well_is_told_why_they_start_again(servers):
    """Its launcher names the rank of the other server, before the restart and at the end.

    The same failure at once ends the loop on all servers: restarts are left, and not used; it is said why.
    """
    ended = "while rank == 0 and not os.path.exists(f'go{os.environ[\"TLAUNCH_ATTEMPT\"]}'): time.sleep(0.02)"
    program = servers.python(ended, "if rank == 0: sys.exit(5)")
    first, second = servers.both("--max-restarts", 9, command=program)
    for attempt in range(2):
        servers.wait_until(lambda number=attempt: len(servers.events(RankEnded)) == 3 + 4 * number, "the others' ends")
        (servers.directory / f"go{attempt}").touch()
    assert servers.end(first, second) == [5, 5]
    verdict, *rest = servers.said(second).partition("restart 1 of 9")
    assert "rank 0: exit code 5" in verdict
    assert "error: rank 0: exit code 5" in rest[1]
    assert [attempt.verdict.culprit for attempt in servers.report(1).attempts] == [0, 0]
    for said in (servers.report().not_restarting, servers.said(first)):
        assert "without any progress" in said


def test_a_server_that_ends_what_its_ranks_left_testifies_at_once(servers):
    """The verdict waits for no grace period there, and both launchers are as sure of it."""
    leaves = "os.fork() == 0 and (signal.signal(signal.SIGTERM, signal.SIG_IGN), open('left', 'w'), time.sleep(1000))"
    program = servers.python(
        f"if rank == 2: {leaves}", "while rank == 2 and not os.path.exists('left'): time.sleep(0.02)",
        "if rank >= 2: sys.exit(0)", WAIT, "if rank == 0: sys.exit(5)", FOR_EVER,
    )  # fmt: skip
    both = servers.both("--grace", 3, command=program)
    servers.wait_until(lambda: servers.events(Leftovers), "the end of what is left")
    (servers.directory / "go").touch()
    servers.wait_until(lambda: servers.events(Judged), "the verdict")
    assert servers.end(*both) == [5, 5]
    for process in both:
        assert "error: rank 0: exit code 5" in servers.said(process)
        assert "certain: no other rank had failed" in servers.said(process)


def test_the_first_of_failures_on_two_servers_is_blamed(servers):
    """By the times of the exceptions: the process of the first one ends after that of the second."""
    program = servers.python(
        "import atexit, pathlib", "if rank in (1, 2): time.sleep(1000)",
        STUBBORN,  # whoever is found failed, and lives on, is asked to end
        "pathlib.Path(f'part{rank}').write_text(str(os.getpid()))", "pathlib.Path(f'part{rank}').rename(f'r{rank}')",
        "while not os.path.exists(f'r{3 - rank}'): time.sleep(0.001)",
        "def other_lives(): return os.path.exists(f'/proc/{pathlib.Path(\"r0\").read_text()}')",
        "def wait_for_other():", "    while other_lives(): time.sleep(0.01)",
        "first = pathlib.Path(os.environ['TLAUNCH_RUN_DIR'], 'device3', 'failure.json')",
        "while rank == 0 and not first.exists(): time.sleep(0.001)",
        "if rank == 0: time.sleep(1)",  # more than is unknown of the clock of an agent that was held up at each question
        "if rank == 3: atexit.register(wait_for_other)",
        "raise ValueError(f'of {rank}')",
    )  # fmt: skip
    both = servers.both(command=program)
    assert servers.end(*both) == [1, 1]
    (judged,) = servers.events(Judged)
    assert [failure.global_rank for failure in judged.verdict.failures] == [3, 0]
    for process in both:
        assert "error: rank 3: ValueError: of 3" in servers.said(process)


@pytest.mark.parametrize(("number", "wish", "code"), [(0, signal.SIGINT, 130), (1, signal.SIGTERM, 143)])
def test_a_signal_to_either_launcher_ends_both(servers, number, wish, code):
    """With that signal's exit code. The other one is told at which server, as are all who ask afterwards."""
    both = servers.both(command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    both[number].send_signal(wish)
    assert servers.end(*both) == [code, code], servers.said(both[0]) + servers.said(both[1])
    report = servers.report()
    assert (report.cause, report.exit_code, report.attempts[0].killed) == (Cause.STOPPED, code, 0)
    asked = f"{wish.name} at server 127.0.0.{number + 1}"
    assert f"{asked}: stopping all ranks within" not in servers.said(both[number])
    for words in (f"{asked}: stopping all ranks within", f"stopped by {asked} after"):
        assert words in servers.said(both[1 - number])
    assert f" by {asked}\n" in servers.told("why")


def test_a_second_interrupt_kills_on_both_servers(servers):
    both = servers.both("--grace", 1000, command=servers.python(STUBBORN, READY, FOR_EVER))
    servers.wait_ready()
    both[1].send_signal(signal.SIGINT)
    servers.wait_until(lambda: "stopping all ranks" in servers.said(both[1]), "the first interrupt")
    time.sleep(SAME_REQUEST_S)
    both[1].send_signal(signal.SIGINT)
    assert servers.end(*both) == [130, 130]
    assert servers.report().attempts[0].killed == 4


def test_a_killed_first_launcher_ends_the_run_everywhere(servers):
    """Its coordinator sees to that; the second launcher says that it was lost."""
    first, second = servers.both(command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    first.kill()
    assert servers.end(second) == [1]
    lost = "error: lost the coordinating launcher on server 127.0.0.1; 2 ranks on this server ended by SIGTERM"
    assert lost in servers.said(second)
    servers.wait_until(lambda: not servers.ranks(), "the end of all ranks")
    servers.wait_until((servers.latest / "report.json").is_file, "the report")
    assert servers.report().cause is Cause.HEAD_LOST
    servers.wait_until(lambda: not servers.endpoint_open(), "the end of the coordinator")


def test_a_lost_coordinator_is_blamed_and_no_rank_that_is_only_busy(servers, suspend):
    """A rank has lost its connection, another one is busy, and what those of the first server did is not known."""
    closed = "RuntimeError('[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1')"
    lose = f"while rank != 2 or not os.path.exists('go'): time.sleep(0.02)\nraise {closed}"
    _, second = servers.both("--lost-after", 60, command=servers.python(READY, lose))
    servers.wait_ready()
    coordinator = servers.events(AgentStarted)[0].agent.pid
    suspend(coordinator)
    (servers.directory / "go").touch()
    told = servers.latest / "server1" / "events.jsonl"
    servers.wait_until(lambda: '"event": "RankEnded"' in told.read_text(), "the end of rank 2")
    os.kill(coordinator, signal.SIGKILL)
    assert servers.end(second) == [1]
    assert "error: lost the coordinating launcher on server 127.0.0.1" in servers.said(second)
    assert "does not take part" not in servers.said(second)


def test_a_killed_second_launcher_ends_the_run_everywhere(servers):
    first, second = servers.both(command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    second.kill()
    assert servers.end(first) == [1]
    lost = "server 127.0.0.2 with ranks 2-3 was lost: the process that started its agent was killed"
    assert lost in servers.said(first)
    servers.wait_until(lambda: not servers.ranks(), "the end of all ranks")


def test_a_killed_agent_is_a_lost_server(servers):
    first, second = servers.both("--max-restarts", 1, command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    agent = servers.agent(1)
    os.kill(agent, signal.SIGKILL)
    assert servers.end(first) == [1], servers.said(first)
    assert servers.end(second)[0] != 0
    assert "server 127.0.0.2 with ranks 2-3 was lost: " in servers.said(first)
    (judged,) = servers.events(Judged)
    assert (judged.verdict.culprit, judged.verdict.server) == (None, "127.0.0.2")
    assert "has to be started by hand again" in servers.report().not_restarting


def test_a_stopped_server_is_lost_after_a_while(servers, suspend):
    """An agent that is silent for --lost-after seconds is no part of the run any more."""
    first, second = servers.both("--lost-after", 6, command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    agent = servers.agent(1)
    suspend(agent)
    assert servers.end(first) == [1], servers.said(first)
    assert "server 127.0.0.2 with ranks 2-3 was lost: nothing was heard from it for 6 s" in servers.said(first)
    os.kill(agent, signal.SIGCONT)
    assert servers.end(second) == [1], servers.said(second)


def test_suspending_the_first_launcher_stops_all_ranks(servers):
    """Ctrl-Z, then `fg`; time in between is no hang, and nobody is lost."""
    first, second = servers.both("--hang-timeout", 30, "--lost-after", 6, command=servers.python(READY, WAIT))
    servers.wait_ready()
    pids = servers.pids(4).values()
    first.send_signal(signal.SIGTSTP)
    servers.wait_until(lambda: all(stat(pid).stopped for pid in [first.pid, *pids]), "everything stopped")
    first.send_signal(signal.SIGCONT)
    servers.wait_until(lambda: not any(stat(pid).stopped for pid in [first.pid, *pids]), "everything going on")
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0]


def test_a_hang_on_one_server_is_one_of_the_run(servers):
    """Exit code 124 on both; the rank that makes no progress is named, others that wait for it too long are not."""
    program = servers.python(READY, "while rank != 3 or time.sleep(1000): print('step', flush=True); time.sleep(0.1)")
    first, second = servers.both("--hang-timeout", 5, command=program)
    assert servers.end(first, second) == [124, 124], servers.said(first)
    assert servers.report().cause is Cause.HUNG
    assert servers.report().attempts[0].verdict.culprit == 3
    for process in (first, second):
        assert re.search(r"(?<!-)rank 3: no progress for \d+ s", servers.said(process))


@pytest.mark.parametrize("whole", [True, False], ids=["with its launcher", "its agent alone"])
def test_a_server_whose_ranks_have_ended_well_may_go(servers, whole):
    """Nothing of the run is there any more: the ranks of the other one go on to their end."""
    program = servers.python("if rank >= 2: sys.exit(0)", READY, WAIT)
    first, second = servers.both(command=program)
    servers.wait_ready([0, 1])
    servers.wait_until(lambda: len(servers.events(RankEnded)) == 2, "the ends of its ranks")
    kill_all([second.pid, servers.agent(1)] if whole else [servers.agent(1)])
    second.wait()
    servers.wait_until(lambda: "left after all its ranks succeeded" in servers.said(first), "that it has gone")
    (servers.directory / "go").touch()
    assert servers.end(first) == [0], servers.said(first)
    report = servers.report()
    assert (report.cause, report.exit_code, report.verdict) == (Cause.FINISHED, 0, None)
    assert sorted(ended.global_rank for ended in report.attempts[0].exits) == [0, 1, 2, 3]


def test_a_coordinator_that_stood_still_blames_no_server(servers):
    first, second = servers.both("--lost-after", 2, command=servers.python(READY, FOR_EVER))
    servers.wait_ready()
    coordinator = servers.events(AgentStarted)[0].agent.pid
    os.kill(coordinator, signal.SIGSTOP)
    try:
        assert servers.end(second) == [1]
    finally:
        os.kill(coordinator, signal.SIGCONT)
    assert servers.end(first) == [1]
    verdict = servers.report().verdict
    assert (verdict.culprit, verdict.server, verdict.servers) == (None, None, ())
    assert verdict.stood_still_s > 1.6
    assert "error: the launcher's machine stalled for" in servers.said(first)
