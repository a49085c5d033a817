"""Launch over virtual hosts on one machine: `tlaunch run --engine mpi` compared with the same mpirun."""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from common.checks import Checks, median_ratio
from common.processes import BIN, TICKS_PER_S

from many_servers.fits import slope

SCRIPTS = "TL_VIRTUAL_HOSTS"  # the directory with up.sh and down.sh
NETWORK = "10.77.0"  # as up.sh has it
SIZES = (2, 4, 8, 16)
STAY_S = 0.6
PATIENCE_S = 120
TLAUNCH, MPIRUN = "tlaunch", "mpirun"
MAPPED = ("--map-by", "seq:oversubscribe", "--bind-to", "none")
MAPPED_4 = ("--map-by", "seq", "--oversubscribe", "--bind-to", "none")
# Its name tells the server apart: every virtual host has its own.
RANK = f'date +%s%N >"$1/$(hostname)"; exec sleep {STAY_S}'


@dataclass(frozen=True)
class Took:
    """Seconds from the start of the command; CPU seconds of one server's processes."""

    up_s: float
    end_s: float
    cpu_s: float


class Hosts:
    """Virtual hosts that are up."""

    def __init__(self, root: Path, folder: Path, count: int, mpirun: str) -> None:
        self._root = root
        self._folder = folder
        self._mpirun = mpirun
        self._old = b"Open MPI) 4" in subprocess.run([mpirun, "--version"], capture_output=True, check=True).stdout
        self._spaces = [_pid_namespace((root / f"h{number}/pid").read_text().strip()) for number in range(1, count + 1)]

    def commands(self, size: int, times: Path) -> dict[str, list[str]]:
        """The same program on the first `size` hosts."""
        table, listed = self._folder / f"{size}.json", self._folder / f"{size}.hosts"
        names = [f"{NETWORK}.{number}" for number in range(1, size + 1)]
        table.write_text(json.dumps(_table(names)), encoding="ascii")
        listed.write_text("".join(f"{name}\n" for name in names), encoding="ascii")
        rank = ["sh", "-c", RANK, "sh", str(times)]
        run = [str(BIN / "tlaunch"), "run", "--engine", "mpi", "--console", "none", "--rank-table", str(table)]
        bare = [self._mpirun, "--hostfile", str(listed), "-np", str(size), *(MAPPED_4 if self._old else MAPPED)]
        return {
            TLAUNCH: [str(self._root / "hub"), *run, "--runs-dir", str(self._folder / "runs"), "--", *rank],
            MPIRUN: [str(self._root / "hub"), *bare, "--wdir", "/", *rank],
        }

    def run(self, size: int, name: str) -> Took:
        times = Path(tempfile.mkdtemp(dir=self._folder))
        command = self.commands(size, times)[name]
        before_s, started_ns = self._cpu_s(), time.time_ns()
        done = subprocess.run(
            command, capture_output=True, env=self._environment(), timeout=PATIENCE_S, cwd=self._folder, check=False
        )
        ended_ns = time.time_ns()
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        up = [int(path.read_text(encoding="ascii")) for path in times.iterdir()]
        assert len(up) == size, f"{len(up)} of {size} ranks came up"
        spent_s = (self._cpu_s() - before_s) / size
        return Took((max(up) - started_ns) / 1e9, (ended_ns - started_ns) / 1e9, spent_s)

    def _environment(self) -> dict[str, str]:
        shell = str(self._root / "tlssh")
        agents = dict.fromkeys(("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent", "HYDRA_LAUNCHER_EXEC"), shell)
        as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        path = f"{Path(self._mpirun).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        return {**os.environ, **agents, **as_root, "PATH": path}

    def _cpu_s(self) -> float:
        """Of all processes of all hosts, those that their parents have waited for included."""
        return sum(_cpu_with_children_s(pid) for pid in _pids() if _pid_namespace(pid) in self._spaces)


def measure(sizes: Sequence[int], rounds: int, checks: Checks) -> None:
    scripts, mpirun = os.environ.get(SCRIPTS), shutil.which("mpirun", path=f"{BIN}{os.pathsep}{os.environ['PATH']}")
    if scripts is None or mpirun is None or os.geteuid() != 0:
        print(f"virtual hosts: left out (they need root, an mpirun, and {SCRIPTS}: the directory of up.sh and down.sh)")
        return
    with virtual_hosts(Path(scripts), max(sizes), mpirun) as hosts:
        print(f"1 rank (sh) on each of N virtual hosts, which share {os.cpu_count()} cores; {mpirun}; {rounds} rounds:")
        rows = {size: [_round(hosts, size) for _ in range(rounds + 1)][1:] for size in sizes}  # the first warms up
    for size in sizes:
        _tell(size, rows[size], checks)
    if len(sizes) > 1:
        _tell_slopes(rows)


def _round(hosts: Hosts, size: int) -> dict[str, Took]:
    return {name: hosts.run(size, name) for name in (TLAUNCH, MPIRUN)}


def _tell(size: int, rows: Sequence[Mapping[str, Took]], checks: Checks) -> None:
    medians = {name: {part: _median(rows, name, part) for part in ("up_s", "end_s", "cpu_s")} for name in rows[0]}
    told = (
        f"{name} up {found['up_s']:.2f} s, end {found['end_s']:.2f} s, CPU per server {found['cpu_s']:.3f} s"
        for name, found in medians.items()
    )
    print(f" {size} hosts: {'; '.join(told)}")
    for until in ("up_s", "end_s"):
        column = [{name: getattr(took, until) for name, took in row.items()} for row in rows]
        checks.tell(f"tlaunch takes of mpirun until {until[:-2]}", median_ratio(column, TLAUNCH, MPIRUN), form=".2f")


def _tell_slopes(rows: Mapping[int, Sequence[Mapping[str, Took]]]) -> None:
    for name in (TLAUNCH, MPIRUN):
        found = {
            part: slope([*rows], [_median(row, name, part) for row in rows.values()]) for part in ("up_s", "end_s")
        }
        print(f"  {name}: {found['up_s']:.3f} s a server until up, {found['end_s']:.3f} s until the end")


def _median(rows: Sequence[Mapping[str, Took]], name: str, part: str) -> float:
    return statistics.median(getattr(row[name], part) for row in rows)


@contextmanager
def virtual_hosts(scripts: Path, count: int, mpirun: str) -> Iterator[Hosts]:
    """They see Python, this launcher and the folder of the runs, wherever these are."""
    with tempfile.TemporaryDirectory() as folder:
        root, runs = Path(folder, "hosts"), Path(folder, "runs")
        runs.mkdir()
        environment = {
            **os.environ,
            "TL_SHARE": " ".join(_hidden((folder, *sys.path, sys.prefix, Path(mpirun).parents[1]))),
        }
        try:
            subprocess.run(
                [scripts / "up.sh", str(count), root], env=environment, check=True, stdout=subprocess.DEVNULL
            )
            yield Hosts(root, runs, count, mpirun)
        finally:
            subprocess.run([scripts / "down.sh", root], stdout=subprocess.DEVNULL, check=False)


def _hidden(paths: Iterable[str | Path]) -> list[str]:
    """Those directories that a virtual host, which has a /tmp of its own, would not see; none inside another."""
    found = {Path(path) for path in paths if str(path).startswith("/tmp/") and Path(path).is_dir()}
    return sorted(str(path) for path in found if found.isdisjoint(path.parents))


def _table(names: Sequence[str]) -> dict[str, object]:
    """Of one device each."""
    servers = [
        {"server_id": name, "device": [{"device_id": "0", "device_ip": f"192.168.0.{rank + 1}", "rank_id": str(rank)}]}
        for rank, name in enumerate(names)
    ]
    return {"version": "1.0", "server_count": str(len(names)), "server_list": servers, "status": "completed"}


def _pids() -> Iterator[str]:
    return (path.name for path in Path("/proc").iterdir() if path.name.isdecimal())


def _pid_namespace(pid: str) -> str:
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""


def _cpu_with_children_s(pid: str) -> float:
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS_PER_S
    return 0.0
