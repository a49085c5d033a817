"""A line of torchrun, msrun or mpirun, as tlaunch has it."""

import shlex
import subprocess

import pytest

from launcher.cli.launch.external.command_lines import parse_line
from launcher.cli.launch.external.options import OPTIONS, counterpart
from launcher.cli.launch.external.tlaunch_line import tlaunch_line

TAKE_A_VALUE = "--devices -n -np --rank-table -t --max-restarts --env -e --engine --runs-dir --coordinator-port"
OWN = {**dict.fromkeys(TAKE_A_VALUE.split(), 1), **dict.fromkeys(("--elastic", "--quiet", "-q", "-d"), 0)}
ONE_MACHINE = {
    "--nproc-per-node 8 train.py --lr 1": "--devices 8 -- python train.py --lr 1",
    "--standalone --nnodes=1 --nproc_per_node=8 -m pkg.train -v": "--devices 8 -- python -m pkg.train -v",
    "--nnodes 1 --nproc-per-node 4 --no-python ./a.sh": "--devices 4 -- ./a.sh",
    "--nproc-per-node gpu --max_restarts=3 train.py": "--devices N --max-restarts 3 -- python train.py",
    "--worker_num 8 --local_worker_num=8 --log_dir 'my logs' train.py": "--devices 8 --runs-dir 'my logs' -- python train.py",
    "--worker_num 4 --join False --bind_core True train.py": "--devices 4 --detach -- python train.py",
    "--cluster_time_out=300 --worker_num 2 train.py": "--devices 2 --env MS_TOPO_TIMEOUT=300 -- python train.py",
    "-np 8 --allow-run-as-root python train.py --nnodes 3": "--engine mpi --devices 8 -- python train.py --nnodes 3",
    "-np 2 -x A=1 -x B python train.py": "--engine mpi --devices 2 --env A=1 -- python train.py",
    "-np 2 --mca btl self ./a.out": "--engine mpi --devices 2 --mpi-ranks --engine-option=--mca --engine-option=btl --engine-option=self -- ./a.out",
    "--engine mpi -np 2 --mca btl self a.py": "--devices 2 --engine mpi --engine-option=--mca --engine-option=btl --engine-option=self -- python a.py",
    "-e A=1 --elastic --tee 3 --devices 2 -- python 'a b.py'": "--devices 2 -e A=1 --elastic -- python 'a b.py'",
    "-n8 --tee 3 python a.py": "--devices 8 -- python a.py",
    "-tt.json --nnodes 2 python a.py": "-t t.json -- python a.py",
    "-qd -n 2 -r3 a.py": "--devices 2 -qd -- python a.py",
    "-t 3 --nproc-per-node 2 a.py": "--devices 2 -- python a.py",
    "-t 0:1,1:2 --nproc-per-node 2 a.py": "--devices 2 -- python a.py",
    "--nproc-per-node 2 --log-dir d --runs-dir e a.py": "--devices 2 --runs-dir e -- python a.py",
    "-np 2 -x A=1 ./a.out": "--engine mpi --devices 2 --mpi-ranks --env A=1 -- ./a.out",
    "-np 4 -x A=1 -H localhost:4 a.py": "--engine mpi --devices 4 --env A=1 -- python a.py",
    "--num_processes 4 --multi_gpu a.py": "--devices 4 -- python a.py",
    "--rank_table_file t.json --worker_num 8 a.py": "--rank-table t.json -- python a.py",
    "--engine=slurm --nnodes 2 --nproc-per-node 8 a.py": "--devices 8 --engine slurm -- python a.py",
    "-x API_TOKEN=abc -np 2 a.py": "--engine mpi --devices 2 --env 'API_TOKEN=********' -- python a.py",
}  # fmt: skip
SEVERAL = {
    "--worker_num 8 --local_worker_num 4 --master_addr 10.0.0.1 --node_rank 0 a.py": "generate --servers 10.0.0.1,HOST2 --devices 4",
    "--worker_num 10 --local_worker_num 4 a.py": "generate --servers HOST1,HOST2,HOST3 --devices 4,4,2",
    "--nnodes 1:2 --nproc-per-node 8 --rdzv-endpoint h1:29400 a.py": "generate --servers h1,HOST2 --devices 8",
    "--nnodes 2 --master-addr [fe80::1]:5 a.py": "generate --servers fe80::1,HOST2 --devices 1",
    "--nnodes 16 --nproc-per-node 8 --master-addr h1 a.py": "generate --servers h1,HOST2,... --devices 8",
    "-np 6 --host h1:4,h2:4 a.py": "generate --servers h1,h2 --devices 4,2",
    "-H h1,h1,h2,h2 a.py": "generate --servers h1,h2 --devices 2",
    "-np 4 -H h1,h2 --oversubscribe a.py": "generate --servers h1,h2 --devices 2",
    "-N 4 --host h1,h2 a.py": "generate --servers h1,h2 --devices 4",
    "-N 2 -np 6 -host h1,h2,h3,h4 a.py": "generate --servers h1,h2,h3 --devices 2",
    "--map-by ppr:4:node -H h1,h2 a.py": "generate --servers h1,h2 --devices 4",
    "-np 8 --npernode 4 --bind-to core a.py": "generate --servers HOST1,HOST2 --devices 4",
    "--worker_num 16 --local_worker_num 8 --master_addr '' a.py": "generate --servers HOST1,HOST2 --devices 8",
    "--worker_num 16 a.py": "generate --servers HOST1,HOST2 --devices 8",
    "--num_gpus 2 --num_nodes 2 a.py": "generate --servers HOST1,HOST2 --devices 2",
    "--num_processes 4 --num_machines 2 a.py": "generate --servers HOST1,HOST2 --devices 2",
    "-np 4 --hostfile 'my hosts' a.py": "convert 'my hosts' --to v1.0",
}  # fmt: skip
# What is said of the ranks has no counterpart, is not clear, or is no line of one program.
NOT_TRANSLATED = (
    "--nnodes x --nproc-per-node 8 a.py", "--nnodes 0 a.py", "-N 2 -n 8 python a.py", "-n 8 --nnodes 2 python a.py",
    "-np 4 python a.py : -np 2 python b.py", "--nproc-per-node 2 -- --lr 1", "--map-by ppr:1:socket -H h1,h2 a.py",
    "-x A=1 -H h1,,h2 a.py", "--ntasks 7 --nodes 2 a.py", "--hostfile h --num-nodes 2 a.py",
)  # fmt: skip


def translated(line, own=OWN):
    return tlaunch_line(parse_line(shlex.split(line), own))


@pytest.mark.parametrize("line", NOT_TRANSLATED)
def test_no_line_is_given_that_would_not_do_the_same(line):
    assert translated(line) is None


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
    found = translated("-H h1,h2 -x A -x B=2 python a.py")
    assert found.run == "tlaunch run --engine mpi --rank-table table.json --env A --env B=2 -- python a.py"
    assert not any("every server" in note for note in found.notes)
    assert "every server" in translated("--nnodes 2 a.py").notes[0]


def test_a_variable_of_this_shell_is_quoted_or_left_out():
    found = translated("-H h1,h2 -x 'A B;touch x' -x A ./a.out")
    assert (found.run.count("--env"), found.notes) == (1, ("-x: A B;touch x is not a variable name",))
    assert found.run.endswith("--env A -- ./a.out")


def test_what_a_line_gives_in_two_ways_is_told():
    assert "--log_dir: --runs-dir is also given" in translated("--worker_num 2 --log_dir d --runs-dir e a.py").notes
    (note,) = translated("--rank-table t.json --nproc-per-node 2 a.py").notes
    assert note == "--nproc-per-node: taken from the rank table"


def test_ranks_on_the_nodes_of_slurm_are_started_by_it():
    """Inside an allocation, of which a line that says nothing of nodes knows nothing."""
    found = translated("--nodes 2 --ntasks 8 python a.py")
    assert (found.table, found.run) == (None, "tlaunch run --engine slurm --devices 4 -- python a.py")
    assert found.notes == ("run it inside an allocation of 2 nodes from salloc or sbatch",)
    assert "allocation" in translated("--ntasks 8 python a.py").notes[0]
    assert "allocation of 2 nodes" in translated("--engine slurm --nnodes 2 a.py").notes[0]


def test_slots_of_a_file_that_get_no_rank_stay_idle():
    found = translated("-np 4 --hostfile hosts a.py")
    assert found.run.endswith("--rank-table table.json --dp 4 --allow-idle-devices -- python a.py")
    assert translated("-N 4 --hostfile hosts a.py").notes == ("each server must have 4 slots in hosts",)


def test_a_port_at_which_servers_meet_is_kept():
    line = "--nnodes 2 --rdzv-endpoint {} {} a.py"
    assert "--coordinator-port 29400" in translated(line.format("h1:29400", "")).run
    assert "--coordinator-port 29400" in translated(line.format("[fe80::1]:29400", "")).run
    for endpoint, option in (("h1", ""), ("h1:0", ""), ("fe80::1", ""), ("h1:29400", "--engine mpi")):
        assert "--coordinator-port" not in translated(line.format(endpoint, option)).run


def test_what_a_rerun_is_not_given_is_as_it_was_recorded():
    def again(line):
        return tlaunch_line(parse_line(shlex.split(line), OWN), command="tlaunch rerun", again=True).run

    assert again("--tee 3 -r 3 -- --lr 1") == "tlaunch rerun -- --lr 1"
    assert again("-np 2 -x A=1 -- --lr 1") == "tlaunch rerun --devices 2 --env A=1 -- --lr 1"


def test_words_that_end_a_line_are_quoted_so_that_they_stay_the_same():
    found = tlaunch_line(parse_line(["--tee", "3", "m\udcc3\udcb6n.py", "a\nb'\\"], OWN))
    assert found.run.endswith(r"-- python $'m\xc3\xb6n.py' $'a\x0ab\x27\x5c'")
    quoted = found.run.partition("python ")[2]
    shown = subprocess.run(["bash", "-c", f"printf %s, {quoted}"], capture_output=True, check=True)
    assert shown.stdout.decode() == "mön.py,a\nb'\\,"


def test_what_is_masked_has_to_be_filled_in():
    assert translated("-x API_TOKEN=abc -np 2 a.py").notes == ("fill in the masked values",)
    assert translated("-x API_TOK=abc -np 2 a.py").notes == ()


def test_a_range_of_servers_is_elastic():
    assert "--elastic" in translated("--nnodes 1:4 a.py").run
    assert "--elastic" not in translated("--nnodes 4 a.py").run
    assert translated("--nnodes 1:4 --elastic a.py").run.count("--elastic") == 1


def test_options_that_are_left_out_are_named_with_the_reason():
    found = translated("--nnodes 1 --node-rank 0 --master_addr h --tee 3 -r 3 --nproc-per-node 2 a.py")
    assert found.notes[0] == "--node-rank, --master_addr: not needed on one machine"
    assert found.notes[1].startswith("--tee, -r: the log of each rank is ")


def test_a_word_that_is_not_known_is_named():
    line = parse_line(["--nnodes", "2", "--nosuch", "--tee", "3", "--other=1", "x", "a.py"], OWN)
    assert (line.unknown, line.program) == (("--nosuch", "--other"), ("x", "a.py"))
    assert not parse_line(["--nosuch", "a", "a.py"], OWN).is_clear
    assert tlaunch_line(line).notes[-1] == "--nosuch, --other: unknown option, left out"


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_one_counterpart(name):
    """It is called so here, something is done instead, or it is needless; under a name with underscores, too."""
    found = counterpart(name)
    assert [found.here, found.instead, found.needless].count(None) == 2
    assert counterpart(f"--{name.removeprefix('--').replace('-', '_')}") is OPTIONS[name] or not name.startswith("--")
