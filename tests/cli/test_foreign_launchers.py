"""Command lines of other launchers are known, and what they would start."""

import shlex

import pytest

from launcher.cli.launch.external.launchers import other_launcher
from launcher.program.program_command import PythonCommand

KNOWN = {
    "torchrun --nproc-per-node 2 ddp.py --lr 1": ("torchrun", "tlaunch run --devices 2 -- python ddp.py --lr 1"),
    "/usr/bin/mpirun -np 4 python -u mpi.py": ("mpirun", "tlaunch run --engine mpi --devices 4 -- python -u mpi.py"),
    "torchrun --standalone train.py": ("torchrun", "tlaunch run --devices 1 -- python train.py"),
    "srun -N 2 -n 8 python train.py": ("srun", "tlaunch run --engine slurm --devices 4 -- python train.py"),
    "srun -N2 --ntasks-per-node=4 python train.py": (
        "srun",
        "tlaunch run --engine slurm --devices 4 -- python train.py",
    ),
    "srun -N 1-2 -n 8 python train.py": ("srun", None),
    "srun -x node3 -n 2 python train.py": ("srun", None),
    "srun -p gpu -t 1:00 --exclude=node3 -n 2 python train.py": ("srun", "tlaunch run --devices 2 -- python train.py"),
    "mpirun -np 2 --verbose ./a.out x.py": (
        "mpirun",
        "tlaunch run --engine mpi --devices 2 --mpi-ranks --verbose -- ./a.out x.py",
    ),
    "mpirun -n 2 -bind-to none bash run.sh": (
        "mpirun",
        "tlaunch run --engine mpi --devices 2 --mpi-ranks -- bash run.sh",
    ),
    "mpirun -n 2 --nosuch 3 numactl python train.py": ("mpirun", None),
    "msrun --worker_num 2 pytest -s t.py": ("msrun", "tlaunch run --devices 2 -- pytest -s t.py"),
    "torchrun --nproc-per-node 2 bash run.sh": ("torchrun", None),
    "deepspeed --include localhost:0,1 train.py": ("deepspeed", "tlaunch run --devices N -- python train.py"),
    "deepspeed --autotuning run train.py": ("deepspeed", None),
    "mpirun -np 4 python3 train.py : -np 2 python b.py": ("mpirun", None),
    "msrun net.py": ("msrun", "tlaunch run --devices 8 -- python net.py"),
    "deepspeed --num_gpus 2 bin/train": ("deepspeed", "tlaunch run --devices 2 -- python bin/train"),
    "horovodrun -np 2 python train.py": ("horovodrun", None),
    "srun --ntasks=8 /opt/bin/python3.11 -m train": ("srun", "tlaunch run --devices 8 -- /opt/bin/python3.11 -m train"),
    "msrun --worker_num=8 --local_worker_num=8 'my net.py'": ("msrun", "tlaunch run --devices 8 -- python 'my net.py'"),
    "mpirun -n 4 ./a.out": ("mpirun", "tlaunch run --engine mpi --devices 4 --mpi-ranks -- ./a.out"),
    "mpirun -n 4 --nosuch 3 ./a.out": ("mpirun", None),
    "mpirun -n 4 --nosuch python a.py": ("mpirun", "tlaunch run --engine mpi --devices 4 -- python a.py"),
    "torchrun --nproc-per-node 2 --max-restarts 3 bin/train": (
        "torchrun",
        "tlaunch run --devices 2 --max-restarts 3 -- python bin/train",
    ),
    "accelerate launch --num_processes 2 train.py": ("accelerate", "tlaunch run --devices 2 -- python train.py"),
    "tlaunch run --devices 2 -- python train.py": ("tlaunch", "tlaunch run --devices 2 -- python train.py"),
    "srun -c 4 -n 2 python train.py": ("srun", "tlaunch run --devices 2 -- python train.py"),
    "torchrun train.py --interpreter python": (
        "torchrun",
        "tlaunch run --devices 1 -- python train.py --interpreter python",
    ),
    "torchrun --nproc-per-node gpu train.py": ("torchrun", "tlaunch run --devices N -- python train.py"),
}


@pytest.mark.parametrize("line", KNOWN)
def test_a_launcher_is_known_by_its_name(line):
    found = other_launcher(shlex.split(line), None)
    assert (found.name, found.as_tlaunch and found.as_tlaunch.run) == KNOWN[line]


def test_an_option_that_is_not_known_is_told():
    assert other_launcher(shlex.split("srun --exclude=h -n 2 python train.py"), None).as_tlaunch.unknown == (
        "--exclude",
    )
    assert other_launcher(shlex.split("srun -n 2 python train.py"), None).as_tlaunch.unknown == ()


def test_the_argument_local_rank_is_missed():
    """Where a launcher gives it, unless it is told not to."""

    def notes(line):
        return other_launcher(shlex.split(line), None).as_tlaunch.notes

    assert "--local_rank" in notes("deepspeed --num_gpus 2 train.py")[-1]
    assert notes("deepspeed --num_gpus 2 --no_local_rank train.py") == (
        "--no_local_rank: ranks have LOCAL_RANK in their environment",
    )
    assert notes("torchrun --nproc-per-node 2 train.py") == ()


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
