"""Command lines of other launchers are known, and what they would start."""

import shlex

import pytest

from launcher.cli.launch.external.launchers import other_launcher
from launcher.program.program_command import PythonCommand

# Each line with the rest of `tlaunch run`; None: it is not translated.
KNOWN = {
    "torchrun --nproc-per-node 2 ddp.py --lr 1": "--devices 2 -- python ddp.py --lr 1",
    "/usr/bin/mpirun -np 4 python -u mpi.py": "--engine mpi --devices 4 -- python -u mpi.py",
    "torchrun --standalone train.py": "--devices 1 -- python train.py",
    "srun -N 2 -n 8 python train.py": "--engine slurm --devices 4 -- python train.py",
    "srun -N2 --ntasks-per-node=4 python train.py": "--engine slurm --devices 4 -- python train.py",
    "srun -N 1-2 -n 8 python train.py": None,
    "srun -x node3 -n 2 python train.py": None,
    "srun -p gpu -t 1:00 --exclude=node3 -n 2 python train.py": "--devices 2 -- python train.py",
    "mpirun -np 2 --verbose ./a.out x.py": "--engine mpi --devices 2 --mpi-ranks --verbose -- ./a.out x.py",
    "mpirun -n 2 -bind-to none bash run.sh": "--engine mpi --devices 2 --mpi-ranks -- bash run.sh",
    "mpirun -n 2 --nosuch 3 numactl python train.py": None,
    "msrun --worker_num 2 pytest -s t.py": "--devices 2 -- pytest -s t.py",
    "torchrun --nproc-per-node 2 bash run.sh": None,
    "deepspeed --include localhost:0,1 train.py": "--devices N -- python train.py",
    "deepspeed --autotuning run train.py": None,
    "mpirun -np 4 python3 train.py : -np 2 python b.py": None,
    "msrun net.py": "--devices 8 -- python net.py",
    "deepspeed --num_gpus 2 bin/train": "--devices 2 -- python bin/train",
    "horovodrun -np 2 python train.py": None,
    "srun --ntasks=8 /opt/bin/python3.11 -m train": "--devices 8 -- /opt/bin/python3.11 -m train",
    "msrun --worker_num=8 --local_worker_num=8 'my net.py'": "--devices 8 -- python 'my net.py'",
    "mpirun -n 4 ./a.out": "--engine mpi --devices 4 --mpi-ranks -- ./a.out",
    "mpirun -n 4 --nosuch 3 ./a.out": None,
    "mpirun -n 4 --nosuch python a.py": "--engine mpi --devices 4 -- python a.py",
    "torchrun --nproc-per-node 2 --max-restarts 3 bin/train": "--devices 2 --max-restarts 3 -- python bin/train",
    "accelerate launch --num_processes 2 train.py": "--devices 2 -- python train.py",
    "tlaunch run --devices 2 -- python train.py": "--devices 2 -- python train.py",
    "srun -c 4 -n 2 python train.py": "--devices 2 -- python train.py",
    "torchrun train.py --interpreter python": "--devices 1 -- python train.py --interpreter python",
    "torchrun --nproc-per-node gpu train.py": "--devices N -- python train.py",
}


@pytest.mark.parametrize("line", KNOWN)
def test_a_launcher_is_known_by_its_name(line):
    found = other_launcher(shlex.split(line), None)
    assert found.name == line.split()[0].removeprefix("/usr/bin/")
    assert (found.as_tlaunch and found.as_tlaunch.run) == (KNOWN[line] and f"tlaunch run {KNOWN[line]}")


def test_an_option_that_is_not_known_is_told():
    for options, unknown in (("--exclude=h", ("--exclude",)), ("", ())):
        found = other_launcher(shlex.split(f"srun {options} -n 2 python train.py"), None)
        assert found.as_tlaunch.unknown == unknown


def test_the_argument_local_rank_is_missed():
    """Where a launcher gives it, unless it is told not to."""

    def notes(line):
        return other_launcher(shlex.split(line), None).as_tlaunch.notes

    assert "--local_rank" in notes("deepspeed --num_gpus 2 train.py")[-1]
    assert notes("deepspeed --num_gpus 2 --no_local_rank train.py") == (
        "--no_local_rank: ranks have LOCAL_RANK in their environment",
    )
    assert notes("torchrun --nproc-per-node 2 train.py") == ()


def test_a_launcher_may_be_a_module():
    def of_module(*words):
        return other_launcher(("python", "-m", *words), PythonCommand("/bin/python", (), "module", words[0], words[1:]))

    found = of_module("torch.distributed.run", "--nproc_per_node=2", "ddp.py")
    assert found.as_tlaunch.run == "tlaunch run --devices 2 -- python ddp.py"
    assert of_module("launcher", "validate", "t.json") is None


# Text of a shell script: the rest of `tlaunch run`; None: no Python command; "": the script starts no ranks itself.
SCRIPTS = {
    "for i in 0 1; do\n export DEVICE_ID=$i\n python -u train.py > log 2>&1 &\ndone": "--devices N -- python -u train.py",
    "export RANK_TABLE_FILE=t.json\nRANK_ID=0 python3 a.py $1 &\n": "--rank-table FILE -- python3 a.py $1",
    "RANK_ID=0 ./a.out &\n": None,
    "export RANK_ID=$OMPI_COMM_WORLD_RANK\nmake && python train.py\n": "",
    "python train.py &\n": "",
    "# RANK_ID=0\npython train.py &\n": "",
}


@pytest.mark.parametrize(("text", "meant"), SCRIPTS.items())
def test_a_shell_script_that_starts_ranks_is_known_by_its_text(tmp_path, text, meant):
    script = tmp_path / "run.sh"
    script.write_text(text)
    for line in ((str(script), "8"), ("bash", "-x", str(script), "data", "8")):
        found = other_launcher(line, None)
        assert (found is None) == (meant == "")
        if found is not None:
            assert found.name == "run.sh"
            assert (found.as_tlaunch and found.as_tlaunch.run) == (meant and f"tlaunch run {meant}")


@pytest.mark.parametrize(
    "line", ["python train.py torchrun", "accelerate config", "tlaunch validate t.json", "./run.sh"]
)
def test_other_programs_are_none(line):
    assert other_launcher(shlex.split(line), None) is None
