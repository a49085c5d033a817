"""The programs of examples/ run as their first lines say."""

import math
import os
import re
import runpy

import pytest
import torch
from safetensors.torch import load_file

from .conftest import BESIDE, ROOT, run_to_end  # `python` and `tlaunch` of the environment under test are in BESIDE

PATIENCE_S = 200

pytestmark = [pytest.mark.distributed, pytest.mark.slow]


def logs_of(runs):
    return [path.read_text() for path in sorted(runs.glob("latest/device?/train.log"))]


@pytest.fixture(name="run")
def _run(tmp_path):
    """Gives a function that runs words of a command line where examples/ is, with runs in a directory of the test."""

    def run(*words, extra=None):
        path = f"{BESIDE}{os.pathsep}{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "TLAUNCH_RUNS_DIR": str(tmp_path), **(extra or {})}
        done = run_to_end(words, cwd=ROOT, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run


def test_data_parallel_ranks_learn_the_same(run, tmp_path):
    run("tlaunch", "run", "--devices", 2, "--", "python", "examples/ddp.py")
    for log in logs_of(tmp_path):
        losses = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", log, re.MULTILINE)]
        assert len(losses) == 5
        assert losses[-1] < 0.01
    assert '"step": 100' in (tmp_path / "latest" / "device1" / "heartbeat").read_text()


def test_the_tutorials_network_trains_on_four_ranks(run, tmp_path):
    """The first loss is the logarithm of its 20,000 words on every rank, and falls; the whole model fits the network of one process."""
    words = ("tlaunch", "run", "--mp", 2, "--pp", 2, "--micro-batches", 2, "--devices", 4)
    run(*words, "--", "python", "examples/transformer.py")
    for log in logs_of(tmp_path):
        losses = [float(loss) for loss in re.findall(r"^epoch: \d+ step: \d+.*, loss is (\S+), ", log, re.MULTILINE)]
        assert len(losses) == 50
        assert abs(losses[0] - math.log(20_000)) < 0.01
        assert losses[-1] < 8
    script = runpy.run_path(str(ROOT / "examples" / "transformer.py"))
    network = script["Net"](script["api"].TransformerOpParallelConfig())
    network.load_state_dict(load_file(tmp_path / "latest" / "model" / "model.safetensors"))


def test_a_network_of_ones_own_is_cut_as_its_strategy_says(run, tmp_path):
    """Eight ranks have the losses that its network has when torch alone trains it here; the listing has the given strategy first."""
    run("tlaunch", "run", "--devices", 8, "--", "python", "examples/strategies.py")
    net = runpy.run_path(str(ROOT / "examples" / "strategies.py"))["Net"]
    torch.manual_seed(1)
    inputs, label = torch.randn(16, 32), torch.randn(16, 4)
    network = net()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        losses.append(torch.nn.functional.mse_loss(network(inputs), label))
        losses[-1].backward()
        optimizer.step()
    for log in logs_of(tmp_path):
        assert log.startswith("matmul ((2, 4), (4, 1))\nrelu ((2, 4),)\n")
        told = [float(loss) for loss in re.findall(r"^step \d+ loss (\S+)$", log, re.MULTILINE)]
        assert told == pytest.approx([loss.item() for loss in losses], abs=5e-6)


def test_ranks_of_an_mpirun_add_up(run, tmp_path, mpirun):
    root = ("--allow-run-as-root",) if os.geteuid() == 0 else ()
    words = (
        mpirun.path, *root, "-x", "PATH", "-x", "TLAUNCH_RUNS_DIR", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none",
    )  # fmt: skip
    run(*words, "-n", 2, "tlaunch", "exec", "--devices", 2, "--", "python", "examples/mpi_sum.py")
    assert [log.strip() for log in logs_of(tmp_path)] == [f"rank {rank} of 2: the sum of 1..2 is 3" for rank in (0, 1)]


def test_a_script_reads_its_rank_and_the_table(run, tmp_path):
    table = "rank_tables/rank_table_4pcs.json"
    run("tlaunch", "run", "--rank-table", table, "--", "python", "examples/rank_variables.py")
    found = [re.fullmatch(r"rank (\d) of 4: device (\d) at \S+ reads (\d) files, first part-00(\d).*\n", log)
             for log in logs_of(tmp_path)]  # fmt: skip
    shares = ["3", "3", "2", "2"]
    assert [match.groups() for match in found] == [(str(rank), str(rank), shares[rank], str(rank)) for rank in range(4)]


def test_the_job_of_slurm_trains_its_ranks(run, tmp_path, slurm, wait_until):
    """Here on one node: the names of these pretended ones mean no address, by which ranks of two could meet."""
    extra = {**slurm, "PATH": f"{BESIDE}{os.pathsep}{slurm['PATH']}", "DEVICES_PER_NODE": "2"}
    words = ("sbatch", "--parsable", "--nodes=1", f"--output={tmp_path / 'job.out'}", "examples/slurm_job.sh")
    job = run(*words, extra=extra).stdout.strip()
    # sbatch --wait asks less and less often.
    wait_until(lambda: not run("squeue", "-h", f"--jobs={job}", extra=extra).stdout, "the end of the job", PATIENCE_S)
    assert "2 ranks succeeded" in (tmp_path / "job.out").read_text()
    assert all("step 100 " in log for log in logs_of(tmp_path))
