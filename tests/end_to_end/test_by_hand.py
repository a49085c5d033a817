"""One run on two servers, started by hand on each: two launchers on this machine, which call it by two addresses."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from launcher.core.events import AttemptStarted, Cause, Judged, RankStarted, from_line
from launcher.core.proc import stat
from launcher.core.report import Report

PATIENCE_S = 60
SERVERS = ("127.0.0.1", "127.0.0.2")
OF_OTHER_JOBS = ("TLAUNCH_", "OMPI_", "PMIX_", "PMI_", "SLURM_", "RANK", "WORLD_SIZE", "MASTER_")
READY = "print('ready', flush=True)"
FOR_EVER = "time.sleep(1000)"
STUBBORN = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"

pytestmark = [pytest.mark.slow]


def python(*statements):
    return [
        sys.executable,
        "-c",
        "\n".join(["import os, sys, time, signal", "rank = int(os.environ['RANK'])", *statements]),
    ]


def table(path, servers=SERVERS, count=2):
    ranks = iter(range(100))
    entries = [
        {
            "server_id": server,
            "device": [
                {"device_id": str(index), "device_ip": f"192.168.{number}.{index + 1}", "rank_id": str(next(ranks))}
                for index in range(count)
            ],
        }
        for number, server in enumerate(servers)
    ]
    whole = {"version": "1.0", "server_count": str(len(servers)), "server_list": entries, "status": "completed"}
    path.write_text(json.dumps(whole))
    return path


class Servers:
    """Launchers of one run, in one directory as on a shared file system."""

    def __init__(self, directory, wait_until):
        self.directory = directory
        self.wait_until = wait_until
        self.runs = directory / "runs"
        self.table = table(directory / "table.json")
        self.port = free_port()
        self._started = {}

    def start(self, number, *arguments, command, rank_table=None, console="none", variables=None, **options):
        """Of server `number`, from 1; a second one of a server replaces the first in what is looked at."""
        words = (
            sys.executable, "-m", "launcher", "run", "--rank-table", rank_table or self.table,
            "--server", f"127.0.0.{number}", "--coordinator-port", self.port, "--grace", 5, "--console", console,
        )  # fmt: skip
        environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_OTHER_JOBS)}
        key = f"{number}-{len(self._started)}"
        with (self.directory / f"out{key}").open("wb") as out, (self.directory / f"err{key}").open("wb") as err:
            process = subprocess.Popen(
                list(map(str, (*words, *arguments, "--", *command))), cwd=self.directory, env={**environment, **(variables or {})},
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, **options,
            )  # fmt: skip
        self._started[key] = process
        process.key = key
        return process

    def both(self, *arguments, command, **options):
        return [self.start(number, *arguments, command=command, **options) for number in (1, 2)]

    def said(self, process):
        return (self.directory / f"err{process.key}").read_text()

    def shown(self, process):
        return (self.directory / f"out{process.key}").read_text()

    def end(self, *processes):
        """Their exit codes."""
        return [process.wait(PATIENCE_S) for process in processes]

    @property
    def latest(self):
        return self.runs / "latest"

    def log(self, rank):
        path = self.latest / f"device{rank}" / "train.log"
        return path.read_text() if path.is_file() else ""

    def wait_ready(self, ranks=range(4), marker="ready"):
        self.wait_until(lambda: all(marker in self.log(rank) for rank in ranks), f"{marker} in all logs")

    def events(self, kind):
        path = self.latest / "events.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        return [event for event in (from_line(line).event for line in lines) if isinstance(event, kind)]

    def pids(self):
        return {event.global_rank: event.pid for event in self.events(RankStarted)}

    def agent(self, server_index):
        """The pid of the one that supervises a server's ranks."""
        lines = (self.latest / f"server{server_index}" / "events.jsonl").read_text().splitlines()
        return from_line(lines[0]).event.agent.pid

    def report(self, server=None):
        own = self.latest if server is None else self.latest / f"server{server}"
        return Report.from_json((own / "report.json").read_text())

    def ranks(self):
        """The pids of every process of any run in this directory that has a run's mark."""
        mark = f"TLAUNCH_RUN_DIR={self.runs}".encode()
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if mark in environ(path)]

    def close(self):
        at_work = [process for process in self._started.values() if process.poll() is None]
        survivors = [] if at_work else self.ranks()
        for process in at_work:
            process.kill()
        for process in self._started.values():
            process.wait()
        for pid in self.ranks():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not survivors, f"ranks survive their launchers: {survivors}"
        assert at_work or not listening(self.port), "the coordinator's port is still open"


def read(path):
    return path.read_text() if path.is_file() else ""


def environ(process):
    try:
        return (process / "environ").read_bytes()
    except OSError:
        return b""


def free_port():
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def listening(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(name="servers")
def _servers(tmp_path, wait_until):
    made = Servers(tmp_path, wait_until)
    yield made
    made.close()


def test_a_run_on_two_servers_ends_well(servers):
    """Ranks of both meet at one address and port, know their server, and nothing of the coordinator."""
    names = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    show = f"print(*[os.environ[name] for name in {names}], *[name for name in os.environ if 'COORDINATOR' in name])"
    first, second = servers.both(command=python(show, "time.sleep(0.2)"), console="all")
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


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_that_fails_ends_all(servers, rank):
    """Both launchers name it, and exit as it did."""
    fails = f"if rank == {rank}: time.sleep(0.2); print('last words'); sys.exit(41)"
    first, second = servers.both(command=python(READY, fails, FOR_EVER))
    assert servers.end(first, second) == [41, 41]
    for process in (first, second):
        assert f"error: rank {rank}: exit code 41" in servers.said(process)
        assert "| last words" in servers.said(process)
    assert [servers.report(server).attempts[0].verdict.culprit for server in (None, 0, 1)] == [rank] * 3
    assert servers.report().cause is Cause.FAILED


def test_a_failure_starts_all_ranks_again(servers):
    """On both servers, at another port, after which nothing of the first attempt is left; even of rank 1, which had ended."""
    again = "if os.environ['TLAUNCH_ATTEMPT'] == '1': sys.exit(0)"
    program = python(
        "print(os.environ['MASTER_PORT'], flush=True)", again, "if rank == 1: sys.exit(0)",
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
    """And hears of the failure that comes later."""
    program = python("if rank >= 2: sys.exit(0)", "time.sleep(0.7)", "if rank == 0: sys.exit(5)", FOR_EVER)
    first, second = servers.both(command=program)
    assert servers.end(first, second) == [5, 5]
    assert servers.report().attempts[0].verdict.culprit == 0
    statuses = {ended.global_rank: ended.status for ended in servers.report().attempts[0].exits}
    assert statuses == {0: 5, 1: -signal.SIGTERM, 2: 0, 3: 0}


def test_the_first_of_failures_on_two_servers_is_blamed(servers):
    """By the times of the exceptions, however late their ends are noticed."""
    program = python(
        "import pathlib", "mine, other = pathlib.Path(f'r{rank}'), pathlib.Path('r0' if rank == 3 else 'r3')",
        "if rank in (1, 2): time.sleep(1000)", "mine.touch()",
        "while not other.exists(): time.sleep(0.001)", "time.sleep(0 if rank == 3 else 0.05)",
        "raise ValueError(f'of {rank}')",
    )  # fmt: skip
    both = servers.both(command=program)
    assert servers.end(*both) == [1, 1]
    (judged,) = servers.events(Judged)
    assert [failure.global_rank for failure in judged.verdict.failures] == [3, 0]
    for process in both:
        assert "error: rank 3: ValueError: of 3" in servers.said(process)


def test_a_failure_that_comes_back_at_once_ends_the_loop_on_all_servers(servers):
    """Restarts are left, and not used; both say why."""
    both = servers.both("--max-restarts", 9, command=python("if rank == 2: raise ValueError('always')", FOR_EVER))
    assert servers.end(*both) == [1, 1]
    assert len(servers.report().attempts) == 2
    assert "before any progress" in servers.report().not_restarting
    assert "before any progress" in servers.said(both[0])


HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n",
    b'["Hello", {"proof": ' + b"[" * 900 + b"]" * 900 + b"}]\n",
    b'["Welcome", {"proof": "", "server_index": 0, "run_name": "", "silence_s": ' + b"9" * 400 + b"}]\n",
    b'["Hello", {"proof": "", "nonce": "\\ud800", "version": "", "python": "", "host": "", "addresses": []}]\n',
    b'["Finish", {"cause": "failed", "exit_code": 1}]\n',
    b"x" * (4 << 20),
]


def test_strangers_at_the_coordinator_s_door_harm_nothing(servers):
    """Whatever they say, while servers are awaited and while ranks run."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    first = servers.start(1, command=python(READY, wait))
    servers.wait_until(lambda: listening(servers.port), "the door")
    knock(servers.port)
    second = servers.start(2, command=python(READY, wait))
    servers.wait_ready()
    knock(servers.port)
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0], servers.said(first)


def knock(port):
    for words in HOSTILE:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection, suppress(OSError):
            connection.sendall(words)
            while connection.recv(1 << 16):  # until it is let go
                pass


def test_a_server_with_another_token_is_not_let_in(servers):
    """It is told nothing, and the others wait on."""
    first = servers.start(1, "--join-timeout", 4, command=["true"], variables={"TLAUNCH_COORDINATOR_TOKEN": "a"})
    servers.wait_until(lambda: listening(servers.port), "the door")
    second = servers.start(2, "--join-timeout", 1, command=["true"], variables={"TLAUNCH_COORDINATOR_TOKEN": "b"})
    assert servers.end(second, first) == [1, 1]
    assert f"127.0.0.1 port {servers.port}: the connection was closed" in servers.said(second)
    assert "server 127.0.0.2 did not come" in servers.said(first)


@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
@pytest.mark.parametrize(("wish", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"])
def test_a_signal_to_either_launcher_ends_both(servers, number, wish, code):
    """With that signal's exit code."""
    both = servers.both(command=python(READY, FOR_EVER))
    servers.wait_ready()
    both[number].send_signal(wish)
    assert servers.end(*both) == [code, code], servers.said(both[0]) + servers.said(both[1])
    report = servers.report()
    assert (report.cause, report.exit_code, report.attempts[0].killed) == (Cause.STOPPED, code, 0)


@pytest.mark.parametrize("number", [0, 1], ids=["first", "second"])
def test_a_second_interrupt_kills_on_both_servers(servers, number):
    """Without the grace that is left."""
    both = servers.both("--grace", 1000, command=python(STUBBORN, READY, FOR_EVER))
    servers.wait_ready()
    both[number].send_signal(signal.SIGINT)
    servers.wait_until(lambda: "ending all ranks" in servers.said(both[number]), "the first interrupt")
    both[number].send_signal(signal.SIGINT)
    assert servers.end(*both) == [130, 130]
    assert servers.report().attempts[0].killed == 4


def test_a_killed_first_launcher_ends_the_run_everywhere(servers):
    """Its coordinator sees to that; the second launcher says that it was lost."""
    first, second = servers.both("--lost-after", 5, command=python(READY, FOR_EVER))
    servers.wait_ready()
    first.kill()
    assert servers.end(second) == [1]
    assert "error: the launcher that coordinated the run is gone; its ranks here: 2 by SIGTERM" in servers.said(second)
    servers.wait_until(lambda: not servers.ranks(), "the end of all ranks")
    servers.wait_until((servers.latest / "report.json").is_file, "the report")
    assert servers.report().cause is Cause.HEAD_LOST
    servers.wait_until(lambda: not listening(servers.port), "the end of the coordinator")


def test_a_killed_second_launcher_ends_the_run_everywhere(servers):
    """Its agent ends its ranks; the first launcher says which server is missing."""
    first, second = servers.both("--lost-after", 5, command=python(READY, FOR_EVER))
    servers.wait_ready()
    second.kill()
    assert servers.end(first) == [1]
    assert "server 127.0.0.2 with ranks 2-3 was lost: the process that started its agent was killed" in servers.said(
        first
    )
    servers.wait_until(lambda: not servers.ranks(), "the end of all ranks")


def test_a_killed_agent_is_a_lost_server(servers):
    """It is told at once by its connection; no restart can bring it back."""
    first, second = servers.both("--max-restarts", 1, command=python(READY, FOR_EVER))
    servers.wait_ready()
    agent = servers.agent(1)
    os.kill(agent, signal.SIGKILL)
    assert servers.end(first) == [1], servers.said(first)
    assert servers.end(second)[0] != 0
    assert "server 127.0.0.2 with ranks 2-3 was lost: " in servers.said(first)
    (judged,) = servers.events(Judged)
    assert (judged.verdict.culprit, judged.verdict.server) == (None, "127.0.0.2")
    assert "has to be started by hand again" in servers.report().not_restarting


def test_a_stopped_server_is_lost_after_a_while(servers):
    """An agent that is silent for --lost-after seconds is no part of the run any more."""
    first, second = servers.both("--lost-after", 1, command=python(READY, FOR_EVER))
    servers.wait_ready()
    agent = servers.agent(1)
    os.kill(agent, signal.SIGSTOP)
    assert servers.end(first) == [1], servers.said(first)
    assert "server 127.0.0.2 with ranks 2-3 was lost: nothing was heard of it for 1 s" in servers.said(first)
    os.kill(agent, signal.SIGCONT)
    assert servers.end(second) == [1], servers.said(second)


def test_a_server_that_never_comes_is_named(servers):
    """After --join-timeout; nothing was started."""
    first = servers.start(1, "--join-timeout", 1, command=python(READY))
    assert servers.end(first) == [1]
    assert "error: server 127.0.0.2 did not come: after 1 s (--join-timeout)" in servers.said(first)
    assert not any(servers.latest.glob("device*/train.log"))


def test_a_first_server_that_never_comes_is_named(servers):
    """By who waits for it, at once and at the end."""
    second = servers.start(2, "--join-timeout", 1, command=python(READY))
    assert servers.end(second) == [1]
    assert servers.said(second).count(f"127.0.0.1 port {servers.port}: Connection refused") == 2
    assert not servers.runs.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"arguments": ("--mp", 2)}, "another layout: dp=2 mp=2 pp=1 micro_batches=1 there, dp=4 mp=1 pp=1"),
        ({"command": ["sleep", "7"]}, "another command: sleep 7"),
        ({"arguments": ("--max-restarts", 3)}, "another --max-restarts: 3 there, 0 on the first server"),
        ({"arguments": ("--env", "SECRET=hidden")}, "another set of --env variables: SECRET"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_words_on_another_server_are_refused(servers, options, told):
    """By both launchers, with both sides; no rank starts."""
    given = {"arguments": (), "command": ["sleep", "5"], **options}
    first = servers.start(1, command=["sleep", "5"])
    second = servers.start(2, *given["arguments"], command=given["command"])
    assert servers.end(first, second) == [3, 3]
    for process in (first, second):
        assert f"error: server 127.0.0.2 was started with {told}" in servers.said(process), servers.said(first)
        assert "hidden" not in servers.said(process)
    assert servers.pids() == {}


def test_another_rank_table_on_another_server_is_refused(servers):
    """Even if only a device differs."""
    other = table(servers.directory / "other.json")
    other.write_text(other.read_text().replace("192.168.1.2", "192.168.1.3"))
    first = servers.start(1, command=["sleep", "5"])
    second = servers.start(2, command=["sleep", "5"], rank_table=other)
    assert servers.end(first, second) == [3, 3]
    for process in (first, second):
        assert "server 127.0.0.2 was started with another rank table: " in servers.said(process)


def test_one_server_that_is_started_twice_is_refused(servers):
    """All are told, since nobody knows which of them is right."""
    three = table(servers.directory / "three.json", (*SERVERS, "127.0.0.3"))
    options = {"command": ["sleep", "5"], "rank_table": three}
    first = servers.start(1, **options)
    second = servers.start(2, **options)
    servers.wait_until(
        lambda: "waiting for 127.0.0.3" in servers.said(first) or "waiting for server 127.0.0.3" in servers.said(first),
        "one of them",
    )
    again = servers.start(2, **options)
    assert servers.end(first, second, again) == [3, 3, 3], servers.said(second)
    for process in (first, again):
        assert "both say that they are server 127.0.0.2 of the rank table" in servers.said(process)


def test_a_server_that_comes_too_late_harms_nothing(servers):
    """It is refused; the run goes on."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    first, second = servers.both(command=python(READY, wait))
    servers.wait_ready()
    late = servers.start(2, command=python(READY, wait))
    assert servers.end(late)[0] in {2, 3}
    assert servers.said(late)
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0]


def test_a_coordinator_s_port_in_use_is_told(servers):
    """Before anything is made."""
    with socket.create_server(("", servers.port)):
        first = servers.start(1, command=["true"])
        assert servers.end(first) == [2]
    assert f"port {servers.port} cannot be used: Address already in use" in servers.said(first)
    assert not servers.runs.exists()


def test_a_first_server_may_go_on_in_the_background(servers):
    """--detach prints the run's name once ranks run; the second launcher sees the end."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    first = servers.start(1, "--detach", command=python(READY, wait))
    second = servers.start(2, command=python(READY, wait))
    assert servers.end(first) == [0], servers.said(first)
    assert servers.shown(first).strip() == servers.latest.resolve().name
    servers.wait_ready()
    (servers.directory / "go").touch()
    assert servers.end(second) == [0]
    servers.wait_until((servers.latest / "report.json").is_file, "the report")


def test_all_servers_may_go_on_in_the_background(servers):
    """Started from one shell, one after the other; each has a file for what it would have shown."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    for number in (1, 2):
        process = servers.start(number, "--detach", console="all", command=python(READY, wait))
        assert servers.end(process) == [0], servers.said(process)
        assert servers.shown(process).strip() == servers.latest.resolve().name
    servers.wait_ready()
    (servers.directory / "go").touch()
    servers.wait_until((servers.latest / "report.json").is_file, "the report")
    servers.wait_until(
        lambda: "2 ranks ended well" in read(servers.latest / "server1" / "console.log"), "its last words"
    )
    servers.wait_until(lambda: "4 ranks ended well" in read(servers.latest / "console.log"), "the last words of all")


def test_suspending_the_first_launcher_stops_all_ranks(servers):
    """Ctrl-Z, then `fg`; time in between is no hang, and nobody is lost."""
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    first, second = servers.both("--hang-timeout", 30, "--lost-after", 2, command=python(READY, wait))
    servers.wait_ready()
    pids = servers.pids().values()
    first.send_signal(signal.SIGTSTP)
    servers.wait_until(lambda: all(stat(pid).stopped for pid in [first.pid, *pids]), "everything stopped")
    first.send_signal(signal.SIGCONT)
    servers.wait_until(lambda: not any(stat(pid).stopped for pid in [first.pid, *pids]), "everything going on")
    (servers.directory / "go").touch()
    assert servers.end(first, second) == [0, 0]


def test_a_hang_on_one_server_is_one_of_the_run(servers):
    """Exit code 124 on both; the rank that makes no progress is named, others that wait for it too long are not."""
    program = python(
        READY, "while rank != 3 or time.sleep(1000): print('step', flush=True); time.sleep(0.1)"
    )  # fmt: skip
    first, second = servers.both("--hang-timeout", 1, command=program)
    assert servers.end(first, second) == [124, 124], servers.said(first)
    assert servers.report().cause is Cause.HUNG
    assert servers.report().attempts[0].verdict.culprit == 3
    for process in (first, second):
        assert "rank 3: no progress for 1 s" in servers.said(process)
