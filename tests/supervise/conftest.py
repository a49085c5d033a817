"""Programs that answer when they are asked for their stacks."""

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from launcher.core.run_dir import RunDir
from launcher.supervise.diagnosis.rank_stacks import Target

PROGRAM = Path(__file__).parents[1] / "programs" / "stacks_rank.py"


class Ranks:
    """Programs started as ranks, and how they can be asked. All are killed at the end."""

    def __init__(self, run_dir):
        self._run_dir = run_dir
        self.processes = {}
        self.targets = {}

    def start(self, what):
        """A Python program that does `what`; returns as soon as it is about to."""
        global_rank = len(self.processes)
        argv = [sys.executable, PROGRAM, self._run_dir.stacks_log(global_rank), what]
        process = self.add(argv, global_rank, stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"ready\n"
        return process

    def add(self, argv, global_rank, **options):
        self._run_dir.device(global_rank).mkdir()
        process = subprocess.Popen(argv, **options)
        self.processes[global_rank] = process
        self.targets[global_rank] = Target(process.pid, self._run_dir.stacks_log(global_rank))
        return process

    def close(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.communicate()


@pytest.fixture
def ranks(tmp_path):
    with closing(Ranks(RunDir(tmp_path))) as made:
        yield made
