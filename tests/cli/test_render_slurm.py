"""The script of `tlaunch render slurm`: its options, and a real Slurm's opinion of it where there is one."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# A cluster of pretended nodes on this machine, for those who have the scripts for it beside their checkout.
VIRTUAL_HOSTS = Path(__file__).resolve().parents[3] / "shared" / "virtual_hosts"
PATIENCE_S = 60
EXEC, RUN = ("slurm", "--flavor", "exec"), ("slurm", "--flavor", "run")
TRIES = """
import os, sys, time
time.sleep(0.3)
print(os.environ["SLURMD_NODENAME"], os.environ["RANK"], os.environ["DEVICE_ID"], sys.argv[1:], flush=True)
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
SHOW_SECRET = """
import os
from pathlib import Path
def cmdline(process):
    try:
        return process.read_bytes()
    except OSError:
        return b""
print(os.environ["MY_TOKEN"], [1 for process in Path("/proc").glob("[0-9]*/cmdline") if b"hid" b"den" in cmdline(process)])
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
    """Nodes, tasks, CPUs, memory and devices, and what was wished besides; the first lines say what a script does."""
    table_of({"n2": [3], "n1": [0, 1, 2]})
    launcher.call("table", "generate", "--servers", "n3,n1.example.org", "--devices", 2, "-o", "domains.json")
    launcher.write("addresses.json", (sample_tables / "rank_table_16pcs.json").read_text())
    told = []
    for typed in ASKED.strip().splitlines():
        done = launcher.call("render", *kind, *shlex.split(typed), "--", "true")
        assert done.returncode == 0, done
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


def test_nobody_takes_the_script(launcher):
    if not shutil.which("sbatch"):
        pytest.skip("there is no sbatch here")
    nowhere = {"SLURM_CONF": str(launcher.directory / "slurm.conf"), "SLURM_CONF_SERVER": ""}
    (launcher.directory / "slurm.conf").write_text(
        "ClusterName=c\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nAuthType=auth/none\nMessageTimeout=2\n"
        "NodeName=localhost\nPartitionName=p Nodes=ALL Default=YES\n"
    )
    done = launcher.call("render", *RUN, "--submit", "--", "true", env=nowhere)
    assert done.returncode != 0
    assert "hint: is slurmctld up" in done.stderr, done.stderr


@pytest.fixture(name="slurm", scope="module")
def _slurm(tmp_path_factory):
    """The environment of a cluster with the nodes n1 to n4, eight devices each."""
    up, down = VIRTUAL_HOSTS / "slurm-up.sh", VIRTUAL_HOSTS / "slurm-down.sh"
    if not up.exists() or not shutil.which("slurmctld") or os.geteuid() != 0:
        pytest.skip("there is no Slurm here, and no way to make one")
    root = tmp_path_factory.mktemp("slurm") / "root"
    if subprocess.run([up, "4", "8", root], capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0:
        subprocess.run([down, root], capture_output=True, timeout=PATIENCE_S, check=False)
        pytest.skip("Slurm does not start here")
    yield {"SLURM_CONF": str(root / "slurm.conf")}
    subprocess.run([down, root], capture_output=True, timeout=PATIENCE_S, check=True)


def by_task(run):
    """The number of a run's job, and then of its task or of its place in the queue."""
    return [int(number) for number in re.findall(r"\d+", run.name.rpartition("t-")[2])]


def ask(slurm, *words, cwd):
    return subprocess.run(
        words, cwd=cwd, env={**os.environ, **slurm}, capture_output=True, text=True, timeout=PATIENCE_S, check=True
    ).stdout


@pytest.fixture(name="submit")
def _submit(launcher, slurm, wait_until):
    """Render, submit, wait for the end; the job's id. Nodes are all one machine, so each says which one it is."""
    tlaunch = launcher.directory / "tlaunch"
    tlaunch.write_text(
        f'#!/bin/sh\nTLAUNCH_SERVER=$SLURMD_NODENAME exec {sys.executable} -m launcher "$@"\n', encoding="utf-8"
    )
    tlaunch.chmod(0o755)

    def submit(*arguments, wait=True, kind=EXEC, options=()):
        done = launcher.call("render", *kind, *arguments)
        assert done.returncode == 0, done.stderr
        beside = Path(sys.executable).parent / "tlaunch"
        (launcher.directory / "job.sh").write_text(done.stdout.replace(f"{beside} ", f"{tlaunch} "))
        outer = {**slurm, "TLAUNCH_RUN_ID": "of the shell"}
        ask(outer, "sbatch", "--test-only", *options, "job.sh", cwd=launcher.directory)
        job = ask(outer, "sbatch", "--parsable", *options, "job.sh", cwd=launcher.directory).strip()
        if wait:
            all_over()
        return job

    def all_over():
        wait_until(lambda: not ask(slurm, "squeue", "-h", cwd=launcher.directory), "the end of the job")

    def wait_for(job):
        wait_until(lambda: not ask(slurm, "squeue", "-h", "-j", job, cwd=launcher.directory), "the end of the job")

    submit.all_over, submit.wait_for = all_over, wait_for
    submit.ask = lambda *words: ask(slurm, *words, cwd=launcher.directory)

    return submit


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
@pytest.mark.parametrize(
    "options",
    [("--nodes", 2), ("--nodes", 2, "--cpus-per-device", 3, "--resource", "gpu"), ("--rank-table", "table.json")],
    ids=["whole nodes", "shared nodes", "table of names"],
)
def test_a_job_on_any_nodes_ends_well(launcher, submit, kind, options):
    """It has a CPU for each rank, waits for no node by name, and takes whichever are free: not those of the table."""
    launcher.call("table", "generate", "--servers", "n1,n9", "--devices", 2, "-o", "table.json")
    devices = () if "--rank-table" in options else ("--devices", 2)
    busy = submit.ask("sbatch", "--parsable", "--nodelist=n1", "--exclusive", "--wrap", "sleep 600").strip()
    try:
        job = submit(*options, *devices, "--name", "t", "--", sys.executable, "-c", TRIES, kind=kind, wait=False)
        submit.wait_for(job)
    finally:
        submit.ask("scancel", busy)
    shown = submit.ask("scontrol", "show", "job", job)
    said = (launcher.directory / f"slurm-{job}.out").read_text()
    assert "JobState=COMPLETED" in shown, said
    assert "ExitCode=0:0" in shown
    assert "ReqNodeList=(null)" in shown
    [cpus] = re.findall(r"NumCPUs=(\d+)", shown)
    assert int(cpus) == (12 if "--cpus-per-device" in options else 16)
    logs = sorted(path for path in launcher.runs.glob("*t-*/device?/train.log") if "latest" not in path.parts)
    assert [log.read_text().split()[:3] for log in logs] == [
        [f"n{rank // 2 + 2}", str(rank), str(rank % 2)] for rank in range(4)
    ], said
    assert not list(launcher.runs.glob(".slurm*"))


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
def test_more_nodes_than_the_script_was_made_for_are_no_failure(launcher, submit, kind):
    """Agents make use of them, and tasks leave them alone."""
    wishes = ["--nodes", 1, "--devices", 2] if kind == RUN else ["--nodes", 2, "--devices", 2]
    submit(*wishes, "--name", "t", "--", sys.executable, "-c", TRIES, kind=kind, options=["--nodes=3"])
    logs = sorted(path for path in launcher.runs.glob("*t-*/device?/train.log") if "latest" not in path.parts)
    assert len(logs) == (6 if kind == RUN else 4)
    assert all(log.read_text() for log in logs)


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
@pytest.mark.parametrize("name", ["plain", 'it\'s "x"', "a #b \\ $(touch bad) `touch bad` %j é"])
def test_slurm_takes_the_script(launcher, slurm, table_of, name, kind):
    wishes = ["--time-limit", "1-12:00", "--restarts", 2, "--sbatch=--gres=gpu:2", "--name", name]
    launcher.call(
        "render", *kind, "--rank-table", table_of({"n2": [0, 1], "n4": [2]}), *wishes, "-o", "job.sh", "--", "true"
    )
    ask(slurm, "sbatch", "--test-only", "job.sh", cwd=launcher.directory)
    job = ask(slurm, "sbatch", "--parsable", "--hold", "job.sh", cwd=launcher.directory).strip()
    shown = ask(slurm, "scontrol", "show", "job", job, cwd=launcher.directory)
    ask(slurm, "scancel", job, cwd=launcher.directory)
    assert f"JobName={name}\n" in shown
    assert "NodeList=n[2,4]" in shown
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
def test_ranks_are_on_the_servers_of_the_table(launcher, submit, table_of, kind):
    """Whatever Slurm's own order is; and an array goes on after a failure, until one job ends well."""
    odd = ["a  b", "$(touch bad)", "`touch bad`", "new\nline", "'\""]
    table = table_of({"n3": [0, 2, 3], "n1": [1]})
    job = submit(
        "--rank-table", table, "--name", "t", "--restarts", 2, "--", sys.executable, "-c", TRIES, *odd, kind=kind
    )
    runs = sorted((path for path in launcher.runs.glob("*t-*") if not path.is_symlink()), key=by_task)
    assert len(runs) == 2, (launcher.directory / f"slurm-{job}_0.out").read_text()
    places = [("n3", 0), ("n1", 0), ("n3", 1), ("n3", 2)]
    assert [(runs[-1] / f"device{rank}" / "train.log").read_text() for rank in range(4)] == [
        f"{node} {rank} {device} {odd}\n" for rank, (node, device) in enumerate(places)
    ]
    assert not (launcher.directory / "bad").exists()


def test_a_server_that_is_not_among_the_nodes(launcher, submit, table_of):
    job = submit("--rank-table", table_of({"10.9.8.7": [0]}), "--", "true")
    said = (launcher.directory / f"slurm-{job}.out").read_text()
    assert "server 10.9.8.7 " in said
    assert not launcher.runs.exists()


@pytest.mark.parametrize(
    "kind", [(*flavor, "--restarts", count) for flavor in (EXEC, RUN) for count in "01"], ids=" ".join
)
def test_ranks_that_save_when_warned_go_on_in_another_job(launcher, submit, wait_until, table_of, kind):
    """Queued again, or the next of an array, though they have ended well: until they end without a warning."""
    restarts = int(kind[-1])
    wishes = ["--rank-table", table_of({"n1": [0], "n2": [1]}), "--name", "t"]
    job = submit(*wishes, "--", sys.executable, "-c", SAVES, wait=False, kind=kind)

    def runs():
        return [
            run
            for run in sorted(launcher.runs.glob("*t-*"), key=by_task)
            if len(list(run.glob("device?/train.log"))) == 2
        ]

    def ready():
        return runs() and all("ready" in log.read_text() for log in runs()[0].glob("device?/train.log"))

    wait_until(ready, "both ranks")
    submit.ask("scancel", "--signal=USR1", "--batch", f"{job}_0" if restarts else job)
    if not restarts:
        wait_until(lambda: "PENDING" in submit.ask("squeue", "-h", "-o", "%T"), "the queue")
        # Slurm waits for minutes, as nodes take no credential of the second in which they revoked the first.
        submit.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    submit.all_over()
    told = [(run / f"device{rank}" / "train.log").read_text() for run in runs() for rank in range(2)]
    assert sorted(told) == sorted(f"ready {run.name}\n" for run in runs() for _ in range(2))
    assert len(runs()) == 2
    assert len(list(launcher.runs.glob(".slurm-*-ended-well"))) == restarts


def test_a_server_by_its_address(launcher, submit, table_of):
    addresses = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    if not addresses:
        pytest.skip("this machine has no address but loopback")
    (launcher.directory / "tlaunch").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m launcher "$@"\n', encoding="utf-8"
    )
    job = submit("--rank-table", table_of({addresses[0]: [0, 1]}), "--name", "t", "--", "sh", "-c", "echo $RANK")
    said = (launcher.directory / f"slurm-{job}.out").read_text()
    assert len(list(launcher.runs.glob("t-*/device?/train.log"))) == 2, said


@pytest.mark.parametrize("kind", [EXEC, RUN], ids=" ".join)
def test_secrets_are_not_in_command_lines(launcher, submit, table_of, kind):
    wishes = ["--rank-table", table_of({"n2": [0]}), "--name", "t", "--env", "MY_TOKEN=hidden a b"]
    job = submit(*wishes, "--", sys.executable, "-c", SHOW_SECRET, kind=kind)
    said = (launcher.directory / f"slurm-{job}.out").read_text()
    [log] = launcher.runs.glob("*t-*/device0/train.log")
    assert log.read_text() == "hidden a b []\n", said
