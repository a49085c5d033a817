"""The script of `tlaunch render slurm`: its options, and a real Slurm's opinion of it where there is one."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.core.events import from_line
from tests.conftest import PATIENCE_S
from tests.end_to_end.conftest import _slurm  # noqa: F401 - a fixture

EXEC, RUN = ("slurm", "--flavor", "exec"), ("slurm", "--flavor", "run")
TRIES = """
import os, subprocess, sys, time
time.sleep(0.3)
seen = subprocess.getoutput("cat /proc/[0-9]*/cmdline 2> /dev/null | grep -ac 'hid[d]en'")
where = [os.environ[name] for name in ("SLURMD_NODENAME", "RANK", "DEVICE_ID")]
print(*where, os.environ.get("MY_TOKEN"), seen, sys.argv[1:], flush=True)
sys.exit(0 if os.environ.get("SLURM_ARRAY_TASK_ID") != "0" else 9)
"""
SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path("saved" + os.environ["RANK"]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", os.environ["TLAUNCH_RUN_ID"], flush=True)
if os.path.exists("saved0") and os.path.exists("saved1"):
    sys.exit(0)
time.sleep(600)
"""


def directives(script):
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


ASKED = """
--rank-table table.json --name 'my job' --time-limit 1-12 --warn-before 90 --sbatch=--gres=npu:8 --sbatch '-p train'
--nodes 3 --devices 4
--nodes 3 --devices 4 --cpus-per-device 6
--nodes 3 --devices 4 --resource gpu:a100
--nodes 3 --devices 4 --sbatch=--mem-per-cpu=4G
--nodes 3 --devices 4 '--sbatch=--mem 64G'
--rank-table domains.json --pin-nodes
--rank-table domains.json
--rank-table addresses.json --restarts 3
--devices 1 --warn-before 90
--devices 1 --sbatch=--nodelist=n[1-2,4] --sbatch '--comment a#b' --sbatch '-p train  --qos=high' --sbatch "--comment=''"
--devices 1 '--sbatch=--comment=$(touch bad)' --sbatch='--comment='"'"'a \\ "b"'"'"
"""


@pytest.mark.parametrize("kind", [RUN, EXEC], ids=["run", "exec"])
def test_what_slurm_is_asked_for(launcher, table_of, sample_tables, kind, snapshot):
    table_of({"n2": [3], "n1": [0, 1, 2]})
    launcher.call("table", "generate", "--servers", "n3,n1.example.org", "--devices", 2, "-o", "domains.json")
    launcher.write("addresses.json", (sample_tables / "rank_table_16pcs.json").read_text())
    told = []
    for typed in ASKED.strip().splitlines():
        done = launcher.call("render", *kind, *shlex.split(typed), "--", "true", code=0)
        first = done.stdout.splitlines()[1].partition(". Made by")[0]
        reads = re.findall(r"\b(?:table|domains|addresses)\.json", done.stdout)[:1]
        again = re.findall(r"^place .*|scontrol requeue", done.stdout, re.MULTILINE)
        told += [f"$ {typed}", first, *directives(done.stdout), *reads, *again, *done.stderr.splitlines(), ""]
    assert "\n".join(told) == snapshot


def test_copies_follow_from_the_nodes_unless_they_were_asked_for(launcher, snapshot):
    """So that `sbatch --nodes=4` of the same script is no job that ends when it starts."""
    started = []
    for layout in ((), ("--mp", 2), ("--dp", 8), ("--dp", 7, "--allow-idle-devices")):
        script = launcher.call("render", *RUN, "--nodes", 2, "--devices", 4, *layout, "--", "true").stdout
        started.append(" ".join(script.partition(" run --engine slurm ")[2].split()[:12]).replace("\\ ", ""))
    assert started == snapshot


def test_a_name_leaves_room_for_the_jobs_own(launcher):
    """A run's name holds both, and the job would fail of it when it starts."""
    assert launcher.call("render", *RUN, "--name", "x" * 160, "--", "true").returncode == 0
    assert "! hint: " in launcher.refused(2, ["render", *RUN, "--name", "x" * 161, "--", "true"])


@pytest.mark.skipif(not shutil.which("sbatch"), reason="there is no sbatch here")
def test_nobody_takes_the_script(launcher):
    nowhere = {"SLURM_CONF": str(launcher.directory / "slurm.conf"), "SLURM_CONF_SERVER": ""}
    conf = ["ClusterName=c", "SlurmctldHost=localhost(127.0.0.1)", "SlurmctldPort=1", "AuthType=auth/none"]
    conf += ["MessageTimeout=2", "NodeName=localhost", "PartitionName=p Nodes=ALL Default=YES", ""]
    launcher.write("slurm.conf", "\n".join(conf))
    done = launcher.call("render", *RUN, "--submit", "--", "true", env=nowhere)
    assert done.returncode != 0
    assert "hint: check that slurmctld runs" in done.stderr, done.stderr


class Cluster:
    """The jobs of one test."""

    def __init__(self, launcher, environment, wait_until):
        self._launcher, self._wait_until = launcher, wait_until
        self._environment = {**environment, "TLAUNCH_RUN_ID": "of the shell"}
        # Nodes are all one machine, so each says which one it is.
        self._script = 'TLAUNCH_SERVER=$SLURMD_NODENAME exec {} -m launcher "$@"'

    def ask(self, *words):
        return subprocess.run(
            words, cwd=self._launcher.directory, env=self._environment, capture_output=True, text=True,
            timeout=PATIENCE_S, check=True,
        ).stdout  # fmt: skip

    def submit(self, *arguments, kind=EXEC, options=(), wait=True, tlaunch=None):
        """Render, submit, wait for the end; the job's id."""
        command = self._launcher.write("tlaunch", f"#!/bin/sh\n{(tlaunch or self._script).format(sys.executable)}\n")
        command.chmod(0o755)
        done = self._launcher.call("render", *kind, *arguments, code=0)
        self._launcher.write(
            "job.sh", done.stdout.replace(f"{Path(sys.executable).parent / 'tlaunch'} ", f"{command} ")
        )
        self.ask("sbatch", "--test-only", *options, "job.sh")
        job = self.ask("sbatch", "--parsable", *options, "job.sh").strip()
        if wait:
            self.wait()
        return job

    def wait(self, *job):
        self._wait_until(lambda: not self.ask("squeue", "-h", *job), "the end of the job")

    def said(self, job):
        return (self._launcher.directory / f"slurm-{job}.out").read_text()

    def runs(self):
        """By the number of a run's job, and then of its task or of its place in the queue."""
        found = [path for path in self._launcher.runs.glob("*t-*") if not path.is_symlink()]
        return sorted(found, key=lambda run: [int(each) for each in re.findall(r"\d+", run.name.rpartition("t-")[2])])

    def logs(self):
        return [log.read_text() for run in self.runs() for log in sorted(run.glob("device?/train.log"))]


@pytest.fixture(name="cluster")
def _cluster(launcher, slurm, wait_until):
    return Cluster(launcher, slurm, wait_until)


@pytest.mark.parametrize(("kind", "options", "cpu_count"), [
    (RUN, (), 16), (EXEC, ("--cpus-per-device", 3, "--resource", "gpu"), 12),
], ids=["whole nodes", "shared nodes"])  # fmt: skip
def test_a_job_on_any_nodes_ends_well(launcher, cluster, kind, options, cpu_count):
    wishes = ("--nodes", 2, "--devices", 2, *options, "--name", "t")
    busy = cluster.ask("sbatch", "--parsable", "--nodelist=n1", "--exclusive", "--wrap", "sleep 600").strip()
    try:
        job = cluster.submit(*wishes, "--", sys.executable, "-c", TRIES, kind=kind, wait=False)
        cluster.wait("-j", job)
    finally:
        cluster.ask("scancel", busy)
    shown = cluster.ask("scontrol", "show", "job", job)
    assert "JobState=COMPLETED" in shown, cluster.said(job)
    assert "ExitCode=0:0" in shown
    assert "ReqNodeList=(null)" in shown
    [cpus] = re.findall(r"NumCPUs=(\d+)", shown)
    assert int(cpus) == cpu_count
    places = [f"n{rank // 2 + 2} {rank} {rank % 2}" for rank in range(4)]
    assert [" ".join(log.split()[:3]) for log in cluster.logs()] == places, cluster.said(job)
    assert not list(launcher.runs.glob(".slurm*"))


@pytest.mark.parametrize(("kind", "nodes", "ranks"), [(EXEC, 2, 4), (RUN, 1, 6)], ids=["exec", "run"])
def test_more_nodes_than_the_script_was_made_for_are_no_failure(cluster, kind, nodes, ranks):
    """Agents make use of them, and tasks leave them alone."""
    program = [sys.executable, "-c", TRIES]
    cluster.submit("--nodes", nodes, "--devices", 2, "--name", "t", "--", *program, kind=kind, options=["--nodes=3"])
    assert (len(cluster.logs()), all(cluster.logs())) == (ranks, True)


def test_slurm_takes_the_script(launcher, cluster, table_of):
    name = 'it\'s "x" a #b \\ $(touch bad) `touch bad` %j é'
    wishes = ["--time-limit", "1-12:00", "--restarts", 2, "--sbatch=--gres=gpu:2", "--name", name, "-o", "job.sh"]
    launcher.call("render", *RUN, "--rank-table", table_of({"n2": [0, 1], "n4": [2]}), *wishes, "--", "true")
    cluster.ask("sbatch", "--test-only", "job.sh")
    job = cluster.ask("sbatch", "--parsable", "--hold", "job.sh").strip()
    shown = cluster.ask("scontrol", "show", "job", job)
    cluster.ask("scancel", job)
    assert f"JobName={name}\n" in shown
    assert "NodeList=n[2,4]" in shown
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
def test_ranks_are_on_the_servers_of_the_table(launcher, cluster, table_of, kind):
    odd = ["a  b", "$(touch bad)", "`touch bad`", "new\nline", "'\""]
    wishes = ["--rank-table", table_of({"n3": [0, 2, 3], "n1": [1]}), "--name", "t", "--restarts", 2]
    wishes += ["--env", "MY_TOKEN=hidden a b"]
    job = cluster.submit(*wishes, "--", sys.executable, "-c", TRIES, *odd, kind=kind)
    assert len(cluster.runs()) == 2, cluster.said(f"{job}_0")
    places = ["n3 0 0", "n1 1 0", "n3 2 1", "n3 3 2"]
    assert cluster.logs()[-4:] == [f"{place} hidden a b 0 {odd}\n" for place in places]
    assert not (launcher.directory / "bad").exists()


def test_a_server_that_is_not_among_the_nodes(launcher, cluster, table_of):
    job = cluster.submit("--rank-table", table_of({"10.9.8.7": [0]}), "--", "true")
    assert "server 10.9.8.7 " in cluster.said(job)
    assert not launcher.runs.exists()


@pytest.mark.parametrize(("kind", "restarts"), [(EXEC, 0), (RUN, 0), (EXEC, 1)], ids=["exec", "run", "array"])
def test_ranks_that_save_when_warned_go_on_in_another_job(launcher, cluster, wait_until, table_of, kind, restarts):  # noqa: PLR0917
    """Queued again, or the next of an array, though they have ended well: until they end without a warning."""
    wishes = ["--rank-table", table_of({"n1": [0], "n2": [1]}), "--name", "t", "--restarts", restarts]
    job = cluster.submit(*wishes, "--", sys.executable, "-c", SAVES, wait=False, kind=kind)
    wait_until(lambda: [log[:5] for log in cluster.logs()] == ["ready"] * 2, "both ranks")
    cluster.ask("scancel", "--signal=USR1", "--batch", f"{job}_0" if restarts else job)
    if not restarts:
        wait_until(lambda: "PENDING" in cluster.ask("squeue", "-h", "-o", "%T"), "the queue")
        # Slurm waits for minutes, as nodes take no credential of the second in which they revoked the first.
        cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    cluster.wait()
    assert len(cluster.runs()) == 2
    assert cluster.logs() == [f"ready {run.name}\n" for run in cluster.runs() for _ in range(2)]
    assert len(list(launcher.runs.glob(".slurm-*-ended-well"))) == restarts


AGAIN = """
import os, time
print("ready", os.environ["TLAUNCH_RUN_ID"], flush=True)
time.sleep(0 if os.environ.get("SLURM_RESTART_COUNT") else 600)
"""


def kill_agent(run, server_index):
    """Kill the process that supervises a server's ranks, as if the server had gone."""
    first = (run / f"server{server_index}" / "events.jsonl").read_text().partition("\n")[0]
    os.kill(from_line(first).event.agent.pid, signal.SIGKILL)


@pytest.mark.parametrize("pinned", [False, True], ids=["any nodes", "those of the table"])
def test_a_job_that_loses_a_server_is_queued_again(cluster, wait_until, table_of, pinned):
    where = ("--nodes", 2, "--devices", 1)
    if pinned:
        where = ("--rank-table", table_of({"n2": [0], "n1": [1]}), "--pin-nodes")
    wishes = (*where, "--cpus-per-device", 1, "--grace", 2, "--sbatch=--exclude=n4", "--name", "t")
    job = cluster.submit(*wishes, "--", sys.executable, "-c", AGAIN, kind=RUN, wait=False)
    wait_until(lambda: [log[:5] for log in cluster.logs()] == ["ready"] * 2, "both ranks")
    node = json.loads((cluster.runs()[0] / "run.json").read_text())["ranks"][1]["server_id"]
    kill_agent(cluster.runs()[0], 1)
    wait_until(lambda: "PENDING" in cluster.ask("squeue", "-h", "-o", "%T"), "the queue")
    excluded = "ExcNodeList=n4\n" if pinned else f"ExcNodeList=n4,{node}\n"
    wait_until(lambda: excluded in cluster.ask("scontrol", "show", "job", job), excluded)
    cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    cluster.wait()
    assert f"server {node} was lost: the job is queued again" in cluster.said(job)
    assert cluster.logs() == [f"ready {run.name}\n" for run in cluster.runs() for _ in range(2)]
    assert "JobState=COMPLETED Reason=None" in cluster.ask("scontrol", "show", "job", job)


STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("ready", flush=True)
time.sleep(600)
"""


def test_a_job_that_is_cancelled_after_it_lost_a_server_stays_cancelled(cluster, wait_until):
    """A job that is being cancelled could be queued again by its own script."""
    wishes = ("--nodes", 2, "--devices", 1, "--cpus-per-device", 1, "--grace", 6, "--name", "t")
    job = cluster.submit(*wishes, "--", sys.executable, "-c", STUBBORN, kind=RUN, wait=False)
    wait_until(lambda: cluster.logs() == ["ready\n"] * 2, "both ranks")
    kill_agent(cluster.runs()[0], 1)
    wait_until(lambda: any("told" in log for log in cluster.logs()), "the end of the others")
    cluster.ask("scancel", job)
    cluster.wait()
    state = cluster.ask("scontrol", "--oneliner", "show", "job", job)
    assert re.search(r"JobState=CANCELLED.*Restarts=0", state), cluster.said(job)


@pytest.mark.parametrize("ends", ["raise SystemExit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_job_whose_program_fails_is_not_queued_again(cluster, ends):
    wishes = ("--nodes", 2, "--devices", 1, "--cpus-per-device", 1)
    job = cluster.submit(*wishes, "--", sys.executable, "-c", ends, kind=RUN)
    assert re.search(r"JobState=FAILED.*Restarts=0", cluster.ask("scontrol", "--oneliner", "show", "job", job))


def test_a_server_by_its_address(cluster, table_of):
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    table = table_of({addresses[0]: [0, 1]})
    command = ["--", "sh", "-c", "echo $RANK"]
    job = cluster.submit("--rank-table", table, "--name", "t", *command, tlaunch='exec {} -m launcher "$@"')
    assert len(cluster.logs()) == 2, cluster.said(job)
