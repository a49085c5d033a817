"""Command lines of other launchers are known, and what they would start."""

import shlex

import pytest

from launcher.program.command import PythonCommand
from launcher.program.launchers import other_launcher

KNOWN = {
    "torchrun --nproc-per-node 2 ddp.py --lr 1": ("torchrun", "tlaunch run --devices 2 -- python ddp.py --lr 1"),
    "/usr/bin/mpirun -np 4 python -u mpi.py": ("mpirun", "tlaunch run --devices 4 -- python -u mpi.py"),
    "torchrun --standalone train.py": ("torchrun", "tlaunch run --devices N -- python train.py"),
    "srun --ntasks=8 /opt/bin/python3.11 -m train": ("srun", "tlaunch run --devices 8 -- /opt/bin/python3.11 -m train"),
    "msrun --worker_num=8 --local_worker_num=8 'my net.py'": ("msrun", "tlaunch run --devices 8 -- python 'my net.py'"),
    "mpirun -n 4 ./a.out": ("mpirun", "tlaunch run --engine mpi --devices 4 -- ./a.out"),
    "mpirun -n 4 --nosuch 3 ./a.out": ("mpirun", None),
    "mpirun -n 4 --nosuch 3 python a.py": ("mpirun", "tlaunch run --devices 4 -- python a.py"),
    "torchrun --nproc-per-node 2 --max-restarts 3 bin/train": (
        "torchrun",
        "tlaunch run --devices 2 --max-restarts 3 -- python bin/train",
    ),
    "accelerate launch --num_processes 2 train.py": ("accelerate", "tlaunch run --devices 2 -- python train.py"),
    "tlaunch run --devices 2 -- python train.py": ("tlaunch", "tlaunch run --devices 2 -- python train.py"),
    "srun -c 4 -n 2 python train.py": ("srun", "tlaunch run --devices 2 -- python train.py"),
    "torchrun train.py --interpreter python": (
        "torchrun",
        "tlaunch run --devices N -- python train.py --interpreter python",
    ),
    "torchrun --nproc-per-node gpu train.py": ("torchrun", "tlaunch run --devices N -- python train.py"),
}


@pytest.mark.parametrize("line", KNOWN)
def test_a_launcher_is_known_by_its_name(line):
    found = other_launcher(shlex.split(line), None)
    assert (found.name, found.as_tlaunch and found.as_tlaunch.run) == KNOWN[line]


def test_a_launcher_that_is_a_module():
    command = PythonCommand("/bin/python", (), "module", "torch.distributed.run", ("--nproc_per_node=2", "ddp.py"))
    found = other_launcher(("python", "-m", "torch.distributed.run"), command)
    assert found.as_tlaunch.run == "tlaunch run --devices 2 -- python ddp.py"


def test_a_module_that_starts_no_ranks_is_none():
    command = PythonCommand("/bin/python", (), "module", "launcher", ("validate", "t.json"))
    assert other_launcher(("python", "-m", "launcher", "validate", "t.json"), command) is None


@pytest.mark.parametrize(
    "line", ["python train.py torchrun", "accelerate config", "tlaunch validate t.json", "./run.sh"]
)
def test_other_programs_are_none(line):
    assert other_launcher(shlex.split(line), None) is None
