"""A line of torchrun, msrun or mpirun, as tlaunch has it."""

import shlex

import pytest

from launcher.program.launcher_options import OPTIONS, counterpart
from launcher.program.translation import parsed, tlaunch_line

OWN = {
    "--devices": 1,
    "-n": 1,
    "-np": 1,
    "--rank-table": 1,
    "-t": 1,
    "--max-restarts": 1,
    "--env": 1,
    "-e": 1,
    "--elastic": 0,
    "--engine": 1,
}
ONE_MACHINE = {
    "--nproc-per-node 8 train.py --lr 1": "--devices 8 -- python train.py --lr 1",
    "--standalone --nnodes=1 --nproc_per_node=8 -m pkg.train -v": "--devices 8 -- python -m pkg.train -v",
    "--nnodes 1 --nproc-per-node 4 --no-python ./a.sh": "--devices 4 -- ./a.sh",
    "--nproc-per-node gpu --max_restarts=3 train.py": "--devices N --max-restarts 3 -- python train.py",
    "--worker_num 8 --local_worker_num=8 --log_dir 'my logs' train.py": "--devices 8 --runs-dir 'my logs' -- python train.py",
    "--worker_num 4 --join False --bind_core True train.py": "--devices 4 --detach -- python train.py",
    "--cluster_time_out=300 --worker_num 2 train.py": "--devices 2 --env MS_TOPO_TIMEOUT=300 -- python train.py",
    "-np 8 --allow-run-as-root python train.py --nnodes 3": "--devices 8 -- python train.py --nnodes 3",
    "-np 2 -x A=1 -x B python train.py": "--devices 2 --env A=1 -- python train.py",
    "-np 2 --mca btl self ./a.out": "--engine mpi --devices 2 --engine-option=--mca --engine-option=btl --engine-option=self -- ./a.out",
    "--engine mpi -np 2 --mca btl self a.py": "--devices 2 --engine mpi --engine-option=--mca --engine-option=btl --engine-option=self -- python a.py",
    "-e A=1 --elastic --tee 3 --devices 2 -- python 'a b.py'": "--devices 2 -e A=1 --elastic -- python 'a b.py'",
    "-n8 --tee 3 --rank-table t.json python a.py": "-n8 --rank-table t.json -- python a.py",
    "--rank_table_file t.json --worker_num 8 a.py": "--rank-table t.json -- python a.py",
    "--engine=slurm --nnodes 2 --nproc-per-node 8 a.py": "--devices 8 --engine slurm -- python a.py",
    "-x API_TOKEN=abc -np 2 a.py": "--devices 2 --env 'API_TOKEN=********' -- python a.py",
}  # fmt: skip
SEVERAL = {
    "--worker_num 8 --local_worker_num 4 --master_addr 10.0.0.1 --node_rank 0 a.py": "generate --servers 10.0.0.1,HOST2 --devices 4",
    "--worker_num 10 --local_worker_num 4 a.py": "generate --servers HOST1,HOST2,HOST3 --devices 4,4,2",
    "--nnodes 1:2 --nproc-per-node 8 --rdzv-endpoint h1:29400 a.py": "generate --servers h1,HOST2 --devices 8",
    "--nnodes 2 --master-addr [fe80::1]:5 a.py": "generate --servers fe80::1,HOST2 --devices N",
    "--nnodes 16 --nproc-per-node 8 --master-addr h1 a.py": "generate --servers h1,HOST2,... --devices 8",
    "-np 6 --host h1:4,h2:4 a.py": "generate --servers h1,h2 --devices 4,2",
    "-H h1,h1,h2,h2 a.py": "generate --servers h1,h2 --devices 2",
    "-np 4 -H h1,h2 --oversubscribe a.py": "generate --servers h1,h2 --devices 2",
    "-np 4 --hostfile 'my hosts' a.py": "convert 'my hosts' --to v1.0",
}  # fmt: skip


def translated(line, own=OWN):
    return tlaunch_line(parsed(shlex.split(line), own))


@pytest.mark.parametrize("line", ONE_MACHINE)
def test_a_line_for_one_machine(line):
    found = translated(line)
    assert (found.table, found.run) == (None, f"tlaunch run {ONE_MACHINE[line]}")


@pytest.mark.parametrize("line", SEVERAL)
def test_several_servers_need_a_rank_table(line):
    found = translated(line)
    assert found.table == f"tlaunch table {SEVERAL[line]} --output table.json"
    assert "--rank-table table.json" in found.run


def test_what_mpirun_starts_from_one_machine_is_started_so_here():
    """With a variable of this shell for all servers."""
    found = translated("-H h1,h2 -x A -x B=2 python a.py")
    assert found.run == 'tlaunch run --engine mpi --rank-table table.json --env A="$A" --env B=2 -- python a.py'
    assert not any("every server" in note for note in found.notes)
    assert "every server" in translated("--nnodes 2 a.py").notes[0]


def test_a_range_of_servers_is_elastic():
    assert "--elastic" in translated("--nnodes 1:4 a.py").run
    assert "--elastic" not in translated("--nnodes 4 a.py").run


def test_options_that_are_left_out_are_named_with_the_reason():
    found = translated("--nnodes 1 --node-rank 0 --master_addr h --tee 3 -r 3 --nproc-per-node 2 a.py")
    assert found.notes[0] == "--node-rank, --master_addr: not needed on one machine"
    assert found.notes[1].startswith("--tee, -r: every rank has its log in ")


def test_a_word_that_is_not_known_is_named():
    assert parsed(["--nnodes", "2", "--nosuch", "a", "--tee", "3", "a.py"], OWN).unknown == ("--nosuch",)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_has_an_advice(name):
    """Under a name with underscores, too."""
    assert counterpart(name).advice
    assert counterpart(f"--{name.removeprefix('--').replace('-', '_')}") is OPTIONS[name] or not name.startswith("--")
