"""A shared disk that answers nothing for a while: ranks wait, the run goes on, and the disk is named. Real hosts, a real disk."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.core.events import Cause
from launcher.core.run_report import Report

from .conftest import BESIDE, TLAUNCH, hosts_of, run_to_end, table_of

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]

MPIRUN = shutil.which("mpirun", path=str(BESIDE)) or shutil.which("mpirun")
LOST_AFTER_S = 5
STALL_S = 4 * LOST_AFTER_S  # beyond the moment at which it is reported
PATIENCE_S = 120.0
# Each line needs the disk, and so does each heartbeat.
PROGRAM = """
import sys, time
from pathlib import Path
import os
told, beat, step = Path(sys.argv[1]), Path(os.environ["TLAUNCH_HEARTBEAT_FILE"]), 0
while not told.exists():
    step += 1
    print("step", step, flush=True)
    beat.with_suffix(".new").write_text('{"step": %d}' % step)
    beat.with_suffix(".new").rename(beat)
    time.sleep(0.05)
"""


class SharedDisk:
    """A file system of its own, in a file, that can be frozen: writes wait then, on every host."""

    def __init__(self, directory):
        self.root = Path(
            tempfile.mkdtemp(prefix="tlaunch-disk-", dir="/var/tmp")
        )  # not below /tmp: hosts have their own
        self._image = directory / "image"

    def __enter__(self):
        with self._image.open("wb") as file:
            file.truncate(64 << 20)
        for command in (["mkfs.ext4", "-q", "-F", self._image], ["mount", "-o", "loop", self._image, self.root]):
            done = run_to_end(command)
            if done.returncode:
                self.root.rmdir()
                pytest.skip(f"no loop device here: {done.stderr}")
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.root], check=False)
        self.root.rmdir()

    @contextmanager
    def frozen(self):
        subprocess.run(["fsfreeze", "-f", self.root], check=True, timeout=60)
        try:
            yield
        finally:
            subprocess.run(["fsfreeze", "-u", self.root], check=True, timeout=60)


@pytest.fixture(scope="module")
def shared_disk(tmp_path_factory):
    if missing := [name for name in ("mkfs.ext4", "mount", "umount", "fsfreeze") if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(missing)} here")
    with SharedDisk(tmp_path_factory.mktemp("disk")) as disk:
        yield disk


@pytest.fixture(scope="module")
def three_hosts(shared_disk, tmp_path_factory):
    """Hosts that have the disk mounted, as they begin with the mounts of this machine."""
    with hosts_of(3, tmp_path_factory) as hosts:
        yield hosts


def launchers(hosts, directory, table, how, *options):
    """The argv of each launcher, the one that coordinates first."""
    rest = [
        "--rank-table",
        table,
        "--runs-dir",
        directory / "runs",
        "--lost-after",
        LOST_AFTER_S,
        "--grace",
        5,
        *options,
    ]
    program = ["--", sys.executable, "-c", PROGRAM, directory / "told"]
    if how == "mpirun":
        return [[hosts.root / "hub", *TLAUNCH, "run", "--engine", "mpi", *rest, *program]]
    return [
        [
            hosts.root / "on",
            f"h{number}",
            "env",
            f"PYTHONPATH={Path(__file__).parents[2]}",
            *TLAUNCH,
            "run",
            *rest,
            *program,
        ]
        for number in (1, 2, 3)
    ]


@pytest.mark.parametrize("how", ["mpirun", "by hand", "by hand, hangs are looked for"])
def test_a_shared_disk_that_stalls_ends_no_run(three_hosts, shared_disk, tmp_path, wait_until, how):
    if how == "mpirun" and MPIRUN is None:
        pytest.skip("no mpirun here")
    directory = Path(tempfile.mkdtemp(dir=shared_disk.root))
    table = table_of(directory / "table.json", three_hosts.addresses(), 1)
    options = ("--hang-timeout", 8) if "hangs" in how else ()
    outputs, processes = [], []
    for number, argv in enumerate(launchers(three_hosts, directory, table, how, *options)):
        outputs.append(tmp_path / f"out{number}")
        with outputs[-1].open("w") as file:
            processes.append(
                subprocess.Popen(
                    list(map(str, argv)), cwd="/", env=three_hosts.environment(), stdin=subprocess.DEVNULL,
                    stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                )
            )  # fmt: skip
    logs = [directory / f"runs/latest/device{rank}/train.log" for rank in range(3)]

    def said():
        return outputs[0].read_text()

    wait_until(lambda: all(log.exists() and log.stat().st_size for log in logs), "ranks that write", PATIENCE_S)
    sizes = [log.stat().st_size for log in logs]
    wait_until(
        lambda: all(log.stat().st_size > size for log, size in zip(logs, sizes, strict=True)), "more", PATIENCE_S
    )
    with shared_disk.frozen():
        wait_until(lambda: "has not responded" in said() or processes[0].poll() is not None, "its name", PATIENCE_S)
        time.sleep(STALL_S)
        assert [process.poll() for process in processes] == [None] * len(processes), said()
    wait_until(lambda: "responds again" in said(), "its end", PATIENCE_S)
    sizes = [log.stat().st_size for log in logs]
    wait_until(
        lambda: all(log.stat().st_size > size for log, size in zip(logs, sizes, strict=True)), "more", PATIENCE_S
    )
    (directory / "told").touch()
    assert [process.wait(PATIENCE_S) for process in processes] == [0] * len(processes), said()
    warnings = re.findall("^warning: .*", said(), re.MULTILINE)
    assert len([warning for warning in warnings if f"the disk with {directory}/runs/" in warning]) == 2
    assert "10.77.0.1, 10.77.0.2 and 10.77.0.3" in said()
    assert not re.search("is lost|no progress|^error", said(), re.MULTILINE)
    report = Report.from_json((directory / "runs/latest/report.json").read_text())
    assert (report.cause, report.exit_code, len(report.attempts), report.events_lost) == (Cause.FINISHED, 0, 1, 0)
