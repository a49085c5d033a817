"""What one attempt leaves in the logs of its ranks for the next one."""

import os
import signal
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.records import Cluster, Layout, RankSpec, RunSpec, Supervision
from launcher.core.run_dir import RunDir
from launcher.supervise.attempt_monitor import AttemptMonitor, RankEnder
from launcher.supervise.event_log import EventLog
from launcher.supervise.fork_server import StartRequest
from launcher.supervise.progress_monitor import ProgressMonitor
from launcher.supervise.rank_group import RankGroup
from launcher.supervise.scheduler import Scheduler
from launcher.supervise.spawner import Spawner
from launcher.supervise.tree import RunGroup
from tests.conftest import file_size_limit

RANK = RankSpec(0, 0, "127.0.0.1", 0, 0, ("true",), {})


def spec_of(run_dir, rank, **supervision):
    return RunSpec(
        name="run", run_dir=run_dir, cluster=Cluster(()), layout=Layout(), ranks=(rank,), cwd=run_dir,
        master_addr="127.0.0.1", master_port=1, supervision=Supervision(**supervision),
    )  # fmt: skip


@pytest.fixture(name="make")
def _make(tmp_path):
    run_dir, event_log = RunDir(tmp_path), EventLog(tmp_path / "events.jsonl", 0)
    run_dir.device(0).mkdir()
    with ExitStack() as made:
        made.callback(event_log.close)

        def make(number, rank=RANK, inherited=(), **supervision):
            inherited, spec = dict(inherited), spec_of(tmp_path, rank, **supervision)
            spawner = made.enter_context(closing(Spawner(spec, [rank], inherited, event_log)))
            variables = {"TLAUNCH_ATTEMPT": str(number)}
            rank_group = RankGroup([rank], run_dir, number, variables, inherited=inherited, spawner=spawner)
            return made.enter_context(closing(rank_group)), spawner

        yield make


@pytest.mark.parametrize(("before", "after"), [
    (None, "--- attempt 1 ---\n"),
    ("", "--- attempt 1 ---\n"),
    ("step 1\n", "step 1\n--- attempt 1 ---\n"),
    ("step 1", "step 1\n--- attempt 1 ---\n"),
    ("\n", "\n--- attempt 1 ---\n"),
])  # fmt: skip
def test_the_line_between_attempts_is_a_line_of_its_own(make, tmp_path, before, after):
    log = RunDir(tmp_path).train_log(0)
    assert (make(0)[0].log_offsets, log.exists()) == ({0: 0}, False)
    if before is not None:
        log.write_text(before)
    assert (make(1)[0].log_offsets, log.read_text()) == ({0: len(after)}, after)


def test_an_attempt_begins_where_the_log_ends_though_no_line_can_be_written(make, tmp_path):
    """Else the last attempt's traceback would be taken for this one's."""
    log = RunDir(tmp_path).train_log(0)
    log.write_text("ValueError: of the last attempt\n")
    size = log.stat().st_size
    with file_size_limit(size):
        assert make(1)[0].log_offsets == {0: size}
    assert log.stat().st_size == size


def test_a_rank_that_ends_before_its_pid_is_reported_is_in_no_known_order(make, tmp_path, wait_until):
    program = "import os; open('pid', 'w').write(str(os.getpid())); raise SystemExit(3)"
    rank = replace(RANK, argv=(sys.executable, "-c", program))
    rank_group, spawner = make(0, rank, os.environ, preload=("json",))
    wait_until(lambda: rank_group.start() == ([], []) and spawner.preloading.waiting_for_s, "the wish for a rank")
    told = tmp_path / "pid"
    pid, status = os.waitpid(int(wait_until(lambda: told.exists() and told.read_text(), "the rank")), 0)
    assert rank_group.note_ends({pid: os.waitstatus_to_exitcode(status)}, 5) == []
    [end] = wait_until(lambda: rank_group.start()[1], "its pid")
    assert (end.status, end.ended_ns, end.order_known, rank_group.all_ended) == (3, 5, False, True)


def test_a_rank_whose_pid_has_not_been_read_yet_gets_a_forwarded_signal(make, tmp_path, wait_until, reap):
    program = "import signal as s; s.signal(s.SIGUSR1, lambda *_: exit(3)); print('ready', flush=True); s.pause()"
    rank = replace(RANK, argv=(sys.executable, "-c", program))
    run_dir = RunDir(tmp_path)
    with closing(EventLog(tmp_path / "others.jsonl", 0)) as event_log:
        rank_group, spawner = make(0, rank, os.environ, preload=("json",))
        ender = RankEnder(rank_group, Supervision(), RunGroup(os.getpid()), Scheduler(event_log), may_repeat=False)
        monitor = AttemptMonitor(rank_group, ProgressMonitor(run_dir, [0]), ender, others=False)
        wait_until(lambda: rank_group.start() == ([], []) and spawner.preloading.waiting_for_s, "the wish for a rank")
        log = run_dir.train_log(0)
        wait_until(lambda: log.exists() and log.read_text() == "ready\n", "the rank")
        monitor.forward(signal.SIGUSR1)
        assert reap(rank_group.running[0]) == 3


def test_an_attempt_in_another_environment_is_preloaded_anew(make, tmp_path, wait_until, reap):
    """An elastic run's attempt on fewer devices has other numbers of threads, which imports read only once."""
    rank = replace(RANK, argv=(sys.executable, "-c", "pass"), env={"OMP_NUM_THREADS": "1"})
    _, spawner = make(0, rank, os.environ, preload=("json",))
    before = spawner.preloading.pid
    [first] = wait_until(spawner.take, "the rank of the first attempt")
    device = tmp_path / "device0"
    spawner.ask([StartRequest(0, rank.argv, {**os.environ, "OMP_NUM_THREADS": "2"}, device / "train.log", device)])
    [second] = wait_until(spawner.take, "the rank of the second attempt")
    server = spawner.preloading.pid
    assert server != before
    assert b"OMP_NUM_THREADS=2" in Path(f"/proc/{server}/environ").read_bytes().split(b"\0")
    for pid in (first.pid, second.pid, before):
        reap(pid)


def test_a_server_of_spare_devices_preloads_what_ranks_of_others_run(tmp_path):
    """It may get ranks in a later attempt of an elastic run."""
    rank = replace(RANK, argv=(sys.executable, "-c", "pass"))
    spec = spec_of(tmp_path, rank, preload=("json",))
    with (
        closing(EventLog(tmp_path / "events.jsonl", 0)) as event_log,
        closing(Spawner(spec, (), os.environ, event_log)) as spawner,
    ):
        server = spawner.preloading
        assert server is not None
    os.waitpid(server.pid, 0)
