"""`tlaunch run --engine slurm` in jobs of a real Slurm: four nodes that are pretended on this machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.core.resources import START

from .conftest import PROGRAMS, TLAUNCH, executable, table_of

PROGRAM = PROGRAMS / "slurm_rank.py"
PATIENCE_S = 120

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


class Cluster:
    """Runs in jobs of their own, from a directory that every node sees."""

    def __init__(self, slurm, directory, wait_until):
        self.slurm, self.directory, self.wait_until = slurm, directory, wait_until
        self.runs = directory / "runs"

    def start(self, *options, nodes=2, words=("live", "0.3"), asked=()):
        """`tlaunch run` in a job of so many nodes, `asked` of salloc beside, for which nobody waits here."""
        run = (*TLAUNCH, "run", "--engine", "slurm", "--runs-dir", self.runs, "--name", "t", "--join-timeout", "60")
        argv = ["salloc", f"--nodes={nodes}", *asked, *run, *options, "--", sys.executable, PROGRAM, *words]
        return subprocess.Popen(
            list(map(str, argv)), cwd=self.directory, env=self.slurm, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def end(self, process):
        try:
            out, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"hangs:\n{process.communicate()[0]}")
        return out, process.returncode

    def ask(self, *words, check=True):
        return subprocess.run(
            list(map(str, words)), cwd=self.directory, env=self.slurm, capture_output=True, text=True,
            timeout=PATIENCE_S, check=check,
        )  # fmt: skip

    def logs(self):
        return [path.read_text().splitlines() for path in sorted(self.runs.glob("latest/device?/train.log"))]

    def wait_begun(self, count):
        self.wait_until(lambda: sum("begun" in " ".join(log) for log in self.logs()) == count, "ranks", PATIENCE_S)

    def agents_on(self, node):
        """Of a node: the task that srun started, and the process of it that has the ranks."""
        return sorted(pid for pid in processes(START, "agent") if variable(pid, "SLURMD_NODENAME") == node)

    def wait_empty(self):
        self.wait_until(lambda: not self.ask("squeue", "-h").stdout, "the end of jobs", PATIENCE_S)
        self.wait_until(lambda: not processes(str(PROGRAM)), "the end of ranks", PATIENCE_S)


def processes(*words):
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if all(word.encode() in command for word in words):
            found.append(int(path.parent.name))
    return found


def variable(pid, name):
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return dict(pair.partition("=")[::2] for pair in pairs).get(name)


@pytest.fixture(name="cluster")
def _cluster(slurm, tmp_path, wait_until):
    cluster = Cluster(slurm, tmp_path, wait_until)
    yield cluster
    cluster.ask("scancel", "--user=root", check=False)
    cluster.wait_empty()


def test_nodes_are_the_servers_where_no_table_names_any(cluster):
    """Ranks know the job, and nothing of what Slurm says of their agents. They share what Slurm gives to a task."""
    out, code = cluster.end(cluster.start("--devices", 2))
    assert code == 0, out
    assert cluster.logs() == [[f"begun {node} {device} 0 SLURM_JOB_ID"] for node in ("n1", "n2") for device in (0, 1)]
    assert "4 ranks succeeded" in out
    assert out.count("warning: this Slurm job has 1 CPU on n1 for 2 ranks") == out.count("CPU") == 1, out


@pytest.mark.parametrize("command", ["run", "doctor"])
def test_a_launcher_that_srun_starts_several_times_is_refused(cluster, command):
    """Each would start all ranks, on the same devices; it is told once on every machine, by who comes first or long after."""
    own = ["--runs-dir", cluster.runs, "--devices", 2, "--", "true"] if command == "run" else ["--devices", 2]
    done = cluster.ask("salloc", "--nodes=2", "srun", *TLAUNCH, command, "--engine", "slurm", *own, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("srun started 2 copies of this command") in {1, 2}, done.stderr
    assert not cluster.runs.exists()


def test_one_task_of_srun_may_start_all_servers(cluster):
    words = ("run", "--engine", "slurm", "--runs-dir", cluster.runs, "--devices", 1, "--", sys.executable, PROGRAM)
    done = cluster.ask("salloc", "--nodes=2", "srun", "--ntasks=1", "--overlap", *TLAUNCH, *words, "live", 0.3)
    assert "2 ranks succeeded" in done.stderr + done.stdout


def test_ranks_are_where_the_table_wants_them(cluster):
    table = table_of(cluster.directory / "table.json", {"n3": [0, 1], "n1": [2]})
    out, code = cluster.end(cluster.start("--rank-table", table, nodes=3, asked=("--cpus-per-task=2",)))
    assert code == 0, out
    assert "CPU" not in out
    assert [log[0].split()[1:3] for log in cluster.logs()] == [["n3", "0"], ["n3", "1"], ["n1", "0"]]


def test_a_rank_that_fails_is_told_with_its_server(cluster):
    out, code = cluster.end(cluster.start("--devices", 2, words=("raise", "3"), asked=("--exclusive",)))
    assert code == 1, out
    assert (out.count("error: "), out.count("CPU")) == (1, 0), out
    assert "error: rank 3: ValueError: a bad step" in out
    assert "server n2, device 1" in out


@pytest.mark.parametrize("which", [0, -1], ids=["srun's task", "the agent"])
def test_a_node_s_agent_is_killed_and_a_restart_begins_with_new_ones(cluster, which):
    """Its ranks do not end by themselves: the others would wait for them. Another step of the same job starts all again."""
    process = cluster.start("--devices", 2, "--max-restarts", 1, words=("live", "600"))
    cluster.wait_begun(4)
    os.kill(cluster.agents_on("n2")[which], signal.SIGKILL)
    out, code = cluster.end(process)
    assert code == 0, out
    assert "server n2 was lost\n  certain: server n2 with ranks 2-3 was lost" in out
    assert [log[-1].split()[:4] for log in cluster.logs()] == [
        ["begun", node, device, "1"] for node in ("n1", "n2") for device in ("0", "1")
    ]


def test_a_start_that_is_in_vain_is_not_tried_for_ever(cluster):
    """An srun that ends at once, when agents are to be had anew: once is enough, whatever restarts are left."""
    calls = cluster.directory / "calls"
    again = f'[ "$(wc -l <{calls})" -gt 1 ] && {{ echo no more >&2; exit 3; }}'
    source = f'#!/bin/sh\necho called >>{calls}\n{again}\nexec {shutil.which("srun")} "$@"\n'
    wrapper = executable(cluster.directory / "bin" / "srun", source)
    cluster.slurm = {**cluster.slurm, "PATH": f"{wrapper.parent}{os.pathsep}{cluster.slurm['PATH']}"}
    process = cluster.start("--devices", 2, "--max-restarts", 5, words=("live", "600"))
    cluster.wait_begun(4)
    os.kill(cluster.agents_on("n2")[-1], signal.SIGKILL)
    out, code = cluster.end(process)
    assert code != 0, out
    assert "did not join: Slurm" in out
    assert "| no more" in out
    assert calls.read_text() == "called\n" * 2


def test_slurm_s_end_comes_in_time_for_an_orderly_one(cluster):
    """Of --grace is granted what Slurm grants: the report is written before it kills everything."""
    process = cluster.start("--devices", 1, "--grace", 60, nodes=1, words=("stubborn",))
    cluster.wait_begun(1)
    step = cluster.ask("squeue", "-h", "--steps", "-o", "%i").stdout.split()
    [step] = [name for name in step if re.fullmatch(r"\d+\.\d+", name)]
    cluster.ask("scancel", "--signal=TERM", step)
    began = time.monotonic()
    out, code = cluster.end(process)
    assert time.monotonic() - began < 30, out
    assert code == 143, out
    report = json.loads((cluster.runs / "latest" / "server0" / "report.json").read_text())
    assert report["cause"] == "stopped"


def test_stacks_shows_the_ranks_of_all_nodes_and_a_signal_of_the_batch_shell_reaches_each_once(cluster):
    """From outside of the job, too. By the head, the coordinator and the agents: `#SBATCH --signal=B:USR1@120`."""
    run = " ".join(map(str, (*TLAUNCH, "run", "--engine", "slurm", "--devices", "2", "--runs-dir", cluster.runs)))
    (cluster.directory / "job.sh").write_text(f"#!/bin/sh\nexec {run} -- {sys.executable} {PROGRAM} live 600\n")
    job = cluster.ask("sbatch", "--parsable", "--nodes=2", "job.sh").stdout.strip()
    cluster.wait_begun(4)

    def all_shown():
        """What is told once every agent has answered in time, which one that is held up does not."""
        told = json.loads(cluster.ask(*TLAUNCH, "stacks", "--runs-dir", cluster.runs, "--json", check=False).stdout)
        return told["not_shown"] == {} and told

    told = cluster.wait_until(all_shown, "the stacks of both nodes", PATIENCE_S)
    assert [rank["global_rank"] for rank in told["ranks"]] == [0, 1, 2, 3]
    cluster.ask("scancel", "--batch", "--signal=USR1", job)
    cluster.wait_until(lambda: all("got SIGUSR1" in log for log in cluster.logs()), "the signal")
    cluster.ask("scancel", job)
    cluster.wait_empty()
    assert [log.count("got SIGUSR1") for log in cluster.logs()] == [1] * 4
    assert "SLURM_PROCID" not in (cluster.directory / f"slurm-{job}.out").read_text()


def test_a_rendered_script_is_handed_to_sbatch(cluster):
    words = ("--devices", 2, "--name", "t", "--runs-dir", cluster.runs, "--max-restarts", 1, "--submit")
    done = cluster.ask(*TLAUNCH, "render", "slurm", *words, "--", sys.executable, PROGRAM, "live", "0.3")
    job = done.stdout.strip()
    assert job.isdecimal(), done
    cluster.wait_empty()
    said = (cluster.directory / f"slurm-{job}.out").read_text()
    assert "2 ranks succeeded" in said
    assert [path.name.partition("-t-")[2] for path in cluster.runs.glob("2*")] == [job]


def test_what_sbatch_refuses_is_told_in_its_words(cluster):
    words = ("--devices", 2, "--nodes", 99, "--submit")
    done = cluster.ask(*TLAUNCH, "render", "slurm", *words, "--", "true", check=False)
    assert done.returncode == 1
    assert "sbatch refuses the script:" in done.stderr
    assert "Node count specification invalid" in done.stderr or "configuration is not available" in done.stderr
    assert not done.stdout
