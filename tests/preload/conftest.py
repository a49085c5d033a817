"""Run a program in three ways: by Python itself, through the bootstrap, forked from a fork server."""

import os
import select
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from launcher.program.program_command import parse_python
from launcher.supervise.fork_server import ForkResult, ForkServer, Ready, StartRequest, bootstrap_argv
from launcher.supervise.spawn import Program

PATIENCE_S = 240  # torch may be imported meanwhile


@dataclass(frozen=True)
class Ended:
    status: int
    log: str
    device_dir: Path


class Ways:
    """Each way runs `argv` in `cwd`, with output and errors in one file as ranks have it."""

    def __init__(self, cwd, outputs, reap):
        self.cwd = cwd
        self.preload_log = outputs / "preload.log"
        self._outputs = outputs
        self._reap = reap

    def plain(self, argv, env=None):
        return self._start(argv, env, self._fresh("plain"), executable=None)

    def run(self, argv, env=None):
        device_dir = self._fresh("run")
        command = parse_python(argv, os.environ["PATH"], self.cwd)
        return self._start(bootstrap_argv(command, device_dir), env, device_dir, executable=command.interpreter)

    def preload(self, argv, env=None, modules=()):
        with self.preloaded(argv, env, modules) as fork_server:
            [ended] = self.fork(fork_server, [self.request(env=env)])
            return ended

    @contextmanager
    def preloaded(self, argv, env=None, modules=()):
        fork_server = self.fork_server(argv, env, modules)
        try:
            [ready] = listen(fork_server)
            assert isinstance(ready, Ready), ready
            yield fork_server
        finally:
            fork_server.close()
            os.waitpid(fork_server.pid, 0)

    def fork_server(self, argv, env=None, modules=()):
        command = parse_python(argv, os.environ["PATH"], self.cwd)
        shown = Program(tuple(argv), environment(env), self.cwd, self.preload_log)
        return ForkServer(command, tuple(modules), shown)

    def request(self, rank=0, env=None, **fields):
        device_dir = self._fresh("forked")
        log = fields.pop("log", device_dir / "train.log")
        return StartRequest(rank, (), environment(env), log, device_dir, **fields)

    def fork(self, fork_server, requests):
        fork_server.fork(requests)
        forked = listen(fork_server, len(requests))
        assert all(isinstance(one, ForkResult) for one in forked), forked
        statuses = {one.global_rank: self._reap(one.pid) for one in forked}
        return [Ended(statuses[one.global_rank], _text(one.log), one.device_dir) for one in requests]

    def _start(self, argv, env, device_dir, executable):
        with (device_dir / "train.log").open("ab") as log:
            done = subprocess.run(
                argv, executable=executable, cwd=self.cwd, env=environment(env), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, check=False, timeout=PATIENCE_S,
            )  # fmt: skip
        return Ended(done.returncode, _text(device_dir / "train.log"), device_dir)

    def _fresh(self, name):
        directory = self._outputs / f"{name}{len(list(self._outputs.iterdir()))}"
        directory.mkdir()
        return directory


def environment(changes):
    """Return an environment in which outputs can be compared: hashes are not random, and buffers are as usual."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **(changes or {})}


def listen(fork_server, count=1):
    heard = []
    deadline = time.monotonic() + PATIENCE_S
    while len(heard) < count:
        assert time.monotonic() < deadline, heard
        select.select([fork_server], [fork_server] if fork_server.wants_write else [], [], 1)
        fork_server.send()
        heard += fork_server.take()
    return heard


def _text(log):
    return log.read_bytes().decode(errors="backslashreplace")


@pytest.fixture
def ways(tmp_path, reap):
    for name in ("program", "outputs"):
        (tmp_path / name).mkdir()
    return Ways(tmp_path / "program", tmp_path / "outputs", reap)


@pytest.fixture(params=["run", "preload"])
def way(request, ways):
    return getattr(ways, request.param)


@pytest.fixture
def same(ways):
    """Run a command plainly and in our two ways, with these sources; assert that neither status nor output differs."""

    def compare(*arguments, env=None, python=sys.executable, **sources):
        for name, source in sources.items():
            (ways.cwd / f"{name}.py").write_text(source)
        expected = ways.plain([python, *arguments], env)
        for way in (ways.run, ways.preload):
            found = way([python, *arguments], env)
            assert (found.status, found.log) == (expected.status, expected.log), way
        return expected

    return compare
