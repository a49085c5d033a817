"""Stopping a run in every way a person, a terminal or a system can."""

import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import termios
import time

import pytest

from launcher.cluster.launcher_loop import SAME_REQUEST_S
from launcher.core.events import AgentEnded, AgentStarted, Cause, Killing, RankStarted, Stopping
from launcher.core.machine.proc import every_process, stat

from .conftest import read_until

GRACE_S = 0.5


UNTIL_GO = 'echo ready; until [ -e "$TLAUNCH_RUN_DIR/go$RANK" ]; do sleep 0.01; done;'


def alive(pid):
    return (found := stat(pid)) is not None and found.living


def agent_pid(launcher):
    return launcher.first(AgentStarted).agent.pid


def test_a_hangup_ends_willing_ranks_at_once(launcher):
    process = launcher.stubborn(grace=1000)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 129
    report = launcher.report
    assert (report.cause, report.exit_code, report.attempts[-1].killed) == (Cause.STOPPED, 129, 0)
    assert launcher.processes() == []


@pytest.mark.parametrize(
    ("number", "cause", "elsewhere"),
    [(signal.SIGTERM, Cause.STOPPED, "double-fork"), (signal.SIGKILL, Cause.HEAD_LOST, "new-session")],
)
def test_a_launcher_that_is_ended_leaves_nothing(launcher, wait_until, number, cause, elsewhere):
    process = launcher.stubborn("ignore", elsewhere, grace=GRACE_S)
    agent = agent_pid(launcher)
    process.send_signal(number)
    assert process.wait(60) == (143 if number == signal.SIGTERM else -number)
    assert number == signal.SIGKILL or launcher.processes() == []
    wait_until(lambda: not launcher.processes(), "the end of every rank and grandchild")
    wait_until((launcher.latest / "report.json").is_file, "the agent's report")
    wait_until(lambda: not alive(agent), "the end of the agent")
    assert launcher.report.cause is cause
    assert number == signal.SIGKILL or launcher.report.attempts[-1].killed == 4


@pytest.mark.parametrize("options", [(), ("--no-preload",)])
@pytest.mark.parametrize("elsewhere", ["", "setsid", "env -i"])
def test_launcher_and_agent_that_are_killed_at_one_moment_leave_nothing(launcher, wait_until, options, elsewhere):
    process = launcher.running(*options, "--", "sh", "-c", f"echo ready; {elsewhere} sleep 1000; true")
    started = wait_until(lambda: len(found := launcher.events(RankStarted)) == 2 and found, "the start of both ranks")
    ranks = [event.pid for event in started]
    wait_until(lambda: len(children := below(ranks)) == 2 and children, "what ranks start")
    started = below(ranks)
    os.kill(process.pid, signal.SIGKILL)
    os.kill(agent_pid(launcher), signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    wait_until(lambda: not any(alive(pid) for pid in (*ranks, *started)), "their end")


def below(ranks):
    return [process.pid for process in every_process() if process.parent in ranks and process.living]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
@pytest.mark.parametrize("code", [0, 3])
def test_a_signal_after_the_end_changes_nothing(launcher, wait_until, number, code):
    """The run has ended, and its last lines wait for whoever reads them: its exit code stays, and how it ended is shown."""
    reader, writer = os.pipe()
    said = launcher.write("said")
    command = ["sh", "-c", f"seq 100000; exit {code}"]
    with said.open("wb") as stderr:
        process = launcher.start("run", "--devices", 1, "--", *command, stdout=writer, stderr=stderr)
    os.close(writer)
    wait_until((launcher.latest / "report.json").is_file, "the end of the run")
    wait_until(lambda: launcher.events(AgentEnded), "the last event")
    process.send_signal(number)
    read_until(reader, None)
    os.close(reader)
    assert process.wait(60) == code
    assert ("succeeded" if code == 0 else "exit code 3") in said.read_text()


def test_too_few_descriptors_are_named(launcher):
    for limit in (8, 10, 12):
        done = launcher.shell(f'ulimit -n {limit}; exec "$@"', "run", "--devices", 2, "--", "true")
        assert done.returncode == 0 or ("Too many open files" in done.stderr and "was killed" not in done.stderr), done


def test_killed_agent_leaves_bystanders_alone(launcher, programs, wait_until):
    """`kill -9` of the agent: the head ends what ranks leave, and says so; no process that its shell had started ends."""
    others = (
        "sleep 1001 & echo $! > child; setsid sleep 1002 & echo $! > session; "
        "sh -c 'until [ -e go ]; do sleep 0.02; done; sleep 1003 & echo $! > orphan' & "
        'exec "$@"'
    )
    stubborn = [sys.executable, programs / "stubborn.py", "ignore", "double-fork"]
    run = launcher.argv("run", "--grace", GRACE_S, "--", *stubborn)
    said = launcher.write("said")
    with said.open("wb") as stderr:
        process = launcher.begin(["sh", "-c", others, "sh", *run], stderr=stderr)
    launcher.wait_ready(1)
    launcher.write("go")
    orphan = launcher.directory / "orphan"
    wait_until(lambda: orphan.is_file() and orphan.read_text(), "the orphan's pid")
    bystanders = [int((launcher.directory / name).read_text()) for name in ("child", "session", "orphan")]
    wait_until(lambda: stat(bystanders[2]).parent == process.pid, "the orphan")
    os.kill(agent_pid(launcher), signal.SIGKILL)
    code = process.wait(60)
    left = [pid for pid in bystanders if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == bystanders
    assert (code, "was killed" in said.read_text(), launcher.processes()) == (137, True, [])
    assert launcher.report.cause is Cause.AGENT_LOST
    assert launcher.report.attempts[-1].killed in {1, 2}, "the rank may still be dying of its agent's death"


def test_the_first_of_several_failures_is_blamed(launcher, wait_until, suspend):
    """Ranks that failed while the agent was suspended are told in the order in which they did."""
    process = launcher.running("--grace", 5, "--", "sh", "-c", f"{UNTIL_GO} exit 4$RANK", ranks=3)
    wait_until(lambda: len(launcher.events(RankStarted)) == 3, "that the agent knows all ranks")
    pids = {event.global_rank: event.pid for event in launcher.events(RankStarted)}
    suspend(agent_pid(launcher))
    for rank in (1, 2, 0):
        (launcher.latest / f"go{rank}").touch()
        wait_until(lambda pid=pids[rank]: not alive(pid), f"the end of rank {rank}")
    os.kill(agent_pid(launcher), signal.SIGCONT)
    assert process.wait(60) == 41
    ends = [(ended.global_rank, ended.status, ended.order_known) for ended in launcher.report.attempts[-1].exits]
    assert ends == [(1, 41, True), (2, 42, True), (0, 40, True)]


def test_an_unknown_order_of_failures_is_told(launcher, wait_until, suspend):
    """Where descriptors are too few to watch ranks, those that ended unseen are marked as in no known order."""
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))  # noqa: E731
    script = ["sh", "-c", f"{UNTIL_GO} exit 4"]
    process = launcher.running("--grace", 5, "--", *script, ranks=3, preexec_fn=few)
    agent = agent_pid(launcher)
    suspend(agent)
    for rank in range(3):
        (launcher.latest / f"go{rank}").touch()
    wait_until(lambda: not launcher.processes(), "the end of the ranks")
    os.kill(agent, signal.SIGCONT)
    assert process.wait(60) == 4
    assert [ended.order_known for ended in launcher.report.attempts[-1].exits] == [False] * 3


def test_an_orphaned_agent_keeps_no_reader_waiting(launcher, wait_until):
    process = launcher.stubborn("ignore", grace=1000, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    agent = agent_pid(launcher)
    process.kill()
    process.communicate(timeout=60)
    assert alive(agent)
    os.kill(agent, signal.SIGQUIT)
    wait_until(lambda: not alive(agent), "the end of the agent")


def test_what_the_launcher_starts_with_cannot_break_supervision(launcher):
    """Neither a psutil.py in its directory, which no agent imports, nor SIGCHLD that is ignored (`trap '' CHLD`)."""
    launcher.write("psutil.py", "raise SystemExit(77)")
    script = ["sh", "-c", "[ $RANK = 0 ] && exec sleep 1000; exit 7"]
    ignored = lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # noqa: E731
    done = launcher.run("run", "--devices", 2, "--grace", 3000, "--", *script, preexec_fn=ignored)
    assert (done.returncode, launcher.report.cause, launcher.events(Killing)) == (7, Cause.FAILED, []), done.stderr


def test_a_stopped_agent_is_ended(launcher, suspend):
    process = launcher.stubborn(grace=GRACE_S)
    agent = agent_pid(launcher)
    suspend(agent)
    process.terminate()
    assert process.wait(60) == 143
    assert launcher.processes() == []


def test_second_interrupt_kills_at_once(launcher, wait_until):
    head, terminal = pty.openpty()
    process = launcher.stubborn(
        "ignore", "new-session", grace=1000,
        stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal, start_new_session=False,
    )  # fmt: skip
    os.close(terminal)
    os.write(head, b"\x03")
    shown = read_until(head, b"Ctrl-C again to kill them at once")
    wait_until(lambda: len(launcher.processes()) == 4, "the end of what has forked the ranks, and of nothing else")
    assert process.poll() is None
    time.sleep(SAME_REQUEST_S)
    os.write(head, b"\x03")
    shown += read_until(head, None)
    os.close(head)
    assert process.wait(60) == 130
    assert b"killing all ranks" in shown
    assert launcher.processes() == []


@pytest.mark.parametrize("has_begun", [False, True])
def test_two_interrupts_before_the_first_rank(launcher, wait_until, has_begun):
    """While Python is still starting, or a run directory has only just been made, of which nothing is left."""
    process = launcher.start("run", "--devices", 4, "--grace", 5, "--", "sleep", 1000)
    if has_begun:
        wait_until(launcher.runs.exists, "the runs directory")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    code = process.wait(60)
    assert code == 130 if has_begun else code != 0
    assert launcher.processes() == []
    assert not list(launcher.runs.glob(".*"))


def test_two_interrupts_at_once_are_one_request(launcher):
    """`timeout -s INT` sends its child two."""
    process = launcher.running("--", "sh", "-c", f"trap 'sleep 1; exit 0' TERM; {UNTIL_GO}", stderr=subprocess.PIPE)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    assert b"after a second request" not in process.communicate(timeout=60)[1]
    assert (process.returncode, launcher.report.attempts[-1].killed) == (130, 0)


def test_stop_while_a_failure_is_being_handled(launcher, programs, wait_until):
    script = (
        f'[ $RANK = 0 ] && exec "{sys.executable}" "{programs / "stubborn.py"}" ignore; '
        'until grep -q ready "$TLAUNCH_RUN_DIR/device0/train.log"; do :; done; exit 5'
    )
    run = ("run", "--devices", 2, "--grace", 1000, "--", "sh", "-c", script)
    process = launcher.start(*run, stderr=subprocess.PIPE)
    wait_until(lambda: launcher.events(Stopping), "the failure")
    process.send_signal(signal.SIGINT)
    read_until(process.stderr.fileno(), b"Ctrl-C again to kill them at once")  # it has been counted: Python merges two
    time.sleep(SAME_REQUEST_S)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 5
    assert launcher.processes() == []


def test_hung_up_under_nohup_goes_on(launcher):
    ignored = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    process = launcher.running("--", "sh", "-c", UNTIL_GO, ranks=1, preexec_fn=ignored)
    process.send_signal(signal.SIGHUP)
    (launcher.latest / "go0").touch()
    assert process.wait(60) == 0


def test_a_stopped_head_does_not_stop_supervision(launcher, wait_until, suspend):
    script = ["sh", "-c", f"{UNTIL_GO} exit $RANK"]
    process = launcher.running("--grace", 1, "--", *script)
    suspend(process.pid)
    for rank in range(2):
        (launcher.latest / f"go{rank}").touch()
    wait_until((launcher.latest / "report.json").is_file, "the report")
    assert launcher.processes() == []
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 1


def test_ranks_that_survive_fail_their_test(launcher, wait_until):
    """What carries the mark of a run when its launcher has ended is killed, and told as a failure."""
    environment = {**os.environ, "TLAUNCH_RUN_DIR": f"{launcher.runs}/run"}
    survivor = subprocess.Popen(["sleep", "1000"], env=environment)
    wait_until(lambda: survivor.pid in launcher.processes(), "its environment")
    with pytest.raises(AssertionError, match=str(survivor.pid)):
        launcher.close()
    assert survivor.wait(30) == -signal.SIGKILL


def own_terminal():
    """In the child: a session whose controlling terminal is stdin, as a shell would arrange it."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
