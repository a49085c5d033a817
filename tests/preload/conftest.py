"""Run a program in three ways: by Python itself, through the bootstrap, forked from a preload process."""

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.program.command import parse_python
from launcher.supervise.fork_server import (
    ForkFailed,
    ForkRequest,
    ForkResult,
    ForkServer,
    Ready,
    Unusable,
    bootstrap_argv,
)

PATIENCE_S = 120


@dataclass(frozen=True)
class Ended:
    """How a rank ended, what it wrote, and where it told its failure."""

    status: int
    log: str
    device_dir: Path


class Ways:
    """Each way runs `argv` in `cwd`, with output and errors in one file as ranks have it."""

    def __init__(self, cwd, outputs, reap):
        self.cwd = cwd
        self._outputs = outputs
        self._reap = reap

    def plain(self, argv, env=None):
        return self._start(argv, env, self._fresh("plain"), executable=None)

    def run(self, argv, env=None):
        device_dir = self._fresh("run")
        command = parse_python(argv, os.environ["PATH"], self.cwd)
        return self._start(bootstrap_argv(command, device_dir), env, device_dir, executable=command.interpreter)

    def preload(self, argv, env=None, modules=()):
        [ended] = self.forked(argv, [env], modules)
        return ended

    def forked(self, argv, envs, modules=()):
        """One rank for every environment, in their order."""
        device_dirs = [self._fresh("forked") for _ in envs]
        command = parse_python(argv, os.environ["PATH"], self.cwd)
        common = environment(next(iter(envs)))
        fork_server = ForkServer(
            command,
            tuple(modules),
            argv_shown=argv,
            common_environment=common,
            cwd=self.cwd,
            log=self._outputs / "preload.log",
        )
        requests = [
            ForkRequest(rank, environment(env), device_dir / "train.log", device_dir)
            for rank, (env, device_dir) in enumerate(zip(envs, device_dirs, strict=True))
        ]
        try:
            pids = forked_pids(fork_server, requests)
            statuses = {rank: self._reap(pid) for rank, pid in pids.items()}
        finally:
            fork_server.close()
            os.waitpid(fork_server.pid, 0)
        return [Ended(statuses[rank], _text(path / "train.log"), path) for rank, path in enumerate(device_dirs)]

    def _start(self, argv, env, device_dir, executable):
        with (device_dir / "train.log").open("ab") as log:
            done = subprocess.run(
                argv,
                executable=executable,
                cwd=self.cwd,
                env=environment(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                check=False,
                timeout=PATIENCE_S,
            )
        return Ended(done.returncode, _text(device_dir / "train.log"), device_dir)

    def _fresh(self, name):
        directory = self._outputs / f"{name}{len(list(self._outputs.iterdir()))}"
        directory.mkdir()
        return directory


def environment(changes):
    """No hash is drawn by lot, and buffers are as usual: outputs can be compared."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **(changes or {})}


def forked_pids(fork_server, requests):
    """The pid of each rank; fails where one cannot be forked."""
    pids = {}
    deadline = time.monotonic() + PATIENCE_S
    while len(pids) < len(requests):
        assert time.monotonic() < deadline, "the preload process says nothing"
        select.select([fork_server], [fork_server] if fork_server.wants_write else [], [], 1)
        fork_server.send()
        for told in fork_server.take():
            assert not isinstance(told, Unusable | ForkFailed), told
            if isinstance(told, Ready):
                fork_server.fork(requests)
            elif isinstance(told, ForkResult):
                pids[told.global_rank] = told.pid
    return pids


def _text(log):
    return log.read_bytes().decode(errors="backslashreplace")


@pytest.fixture
def ways(tmp_path, reap):
    for name in ("program", "outputs"):
        (tmp_path / name).mkdir()
    return Ways(tmp_path / "program", tmp_path / "outputs", reap)


@pytest.fixture(params=["run", "preload"])
def way(request, ways):
    """One of our two ways."""
    return getattr(ways, request.param)


@pytest.fixture
def same(ways, way):
    """Run a command plainly and our way; assert that neither status nor output differs, and give them."""

    def compare(*arguments, env=None, python=sys.executable, **changes):
        expected = ways.plain([python, *arguments], env)
        found = way([python, *arguments], env, **changes)
        assert (found.status, found.log) == (expected.status, expected.log)
        return found

    return compare
