"""`tlaunch render`: what it writes, and what it refuses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.engines.render.kinds import KINDS

from .transcript import typed_lines

ODD = ["a b", 'it\'s "x"', "$(touch bad)", "`touch bad`", "new\nline", "--help", "*", "\\", "", "%t #x"]
SCRIPTS = [
    ("bash",), ("mpirun",), ("mpirun", "--flavor", "mpich"), ("slurm",), ("slurm", "--restarts", "2"),
    ("slurm", "--flavor", "exec"), ("slurm", "--flavor", "exec", "--restarts", "2"),
]  # fmt: skip
JOBS = [("slurm",), ("slurm", "--flavor", "exec")]
EVERY = [
    *SCRIPTS, ("kubernetes", "--image", "x"), ("kubernetes", "--image", "x", "--flavor", "mpi"),
]  # fmt: skip


def test_shellcheck_has_nothing_to_say(launcher, table_of, sample_tables):
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if shellcheck is None:
        pytest.skip("shellcheck is not installed")
    odd = [word for value in ODD for word in ("--env", f"X={value}")]
    command = [*odd, "--", sys.executable, "-c", "pass", *ODD]
    texts = []
    for servers in ({"h1": [0, 1]}, {"h2": [0, 1, 3], "h1": [2]}):
        table = table_of(servers)
        texts += [launcher.call("render", *kind, "--rank-table", table, *command).stdout for kind in SCRIPTS]
    wishes = ["--nodes", 3, "--devices", 2, "--dp", 5, "--allow-idle-devices", "--runs-dir", "r 'x' $(touch bad)"]
    any_nodes = [launcher.call("render", *kind, *wishes, "--", "true").stdout for kind in JOBS]
    assert all(text.startswith("#!/usr/bin/env bash\n# 5 ranks on 3 servers") for text in any_nodes)
    idle = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--dp", 2, "--allow-idle-devices"]
    reduced = launcher.call("render", "bash", *idle, "--", "true").stdout
    assert ('"rank_id": "1"' in reduced, '"rank_id": "2"' in reduced) == (True, False)
    mpi = ["--flavor", "mpi", "--image", "x", "--rank-table", table_of({"h1": [0], "h2": [1]}), "--cwd", "/a 'b'"]
    secret = ["--env", "MY_TOKEN=a b", "--env-from-secret", "HUB_TOKEN=hub:token"]
    config = launcher.call("render", "kubernetes", *mpi, *secret, *command).stdout
    texts += [*any_nodes, reduced, next(yaml.safe_load_all(config))["data"]["mpirun.sh"]]
    files = [launcher.write(f"{number}.sh", text) for number, text in enumerate(texts)]
    checked = subprocess.run([shellcheck, *files], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert all(text.startswith("#!/usr/bin/env bash\n") for text in texts)


def test_names_that_a_format_cannot_hold_are_refused(launcher, table_of):
    for name in ("a b", "-x", "a\nrank 0=evil slot=0", "a:2", "$(touch bad)", "`touch bad`", "'", "#h"):
        table = table_of({name: [0]})
        words = [["render", kind, "--rank-table", table, "-o", "out", "--", "true"] for kind in ("mpirun", "slurm")]
        launcher.refused(2, *words)


# --- where the text goes ---


@pytest.mark.parametrize("kind", EVERY, ids=" ".join)
def test_a_file_is_what_stdout_would_be(launcher, kind):
    shown = launcher.call("render", *kind, "--devices", 2, "--name", "n", "--", "true")
    done = launcher.call("render", *kind, "--devices", 2, "--name", "n", "-o", "made", "--", "true")
    made = launcher.directory / "made"
    assert (shown.returncode, done.returncode, done.stdout) == (0, 0, "")
    assert made.read_text() == shown.stdout
    assert shown.stdout.endswith("\n")
    assert bool(made.stat().st_mode & 0o100) == KINDS[kind[0]].is_script
    assert [path.name for path in launcher.directory.iterdir()] == ["made"]


def test_a_file_that_exists_stays(launcher):
    made = launcher.write("made", "mine")
    launcher.refused(2, "render bash --devices 2 -o made -- true")
    assert made.read_text() == "mine"
    assert launcher.call("render", "bash", "--devices", 2, "-o", "made", "--force", "--", "true").returncode == 0
    assert made.read_text().startswith("#!")


def test_secrets_are_told_and_kept_from_others(launcher):
    secrets = ["--env", "API_KEY=abc", "-o", "run.sh", "--", "true", "--password", "abc"]
    done = launcher.call("render", "bash", "--devices", 1, *secrets)
    assert ("API_KEY, COMMAND" in done.stderr, "abc" in done.stderr) == (True, False)
    assert (launcher.directory / "run.sh").stat().st_mode & 0o777 == 0o700
    done = launcher.call("render", "kubernetes", "--image", "x", "--env-from-secret", "A_TOKEN=s3cr3t", "--", "true")
    assert (done.returncode, "s3cr3t" in done.stderr) == (2, False)
    done = launcher.call("render", "kubernetes", "--image", "x", "--env", "A_TOKEN=x", "--", "true")
    assert "A_TOKEN; use --env-from-secret " in done.stderr


# --- checks of `tlaunch run` ---


REFUSED = {
    2: r"""
bash --devices 2 --rank-table x.json -- true; bash --rank-table x.json -- true; bash --devices 2 -- no-such-program
bash --devices 2 -- python no-such-script.py; bash --devices 2 --env RANK=1 -- true
bash --devices 2 --set train.nonsense=1; bash --devices 2 --name a/b -- true; bash --devices 2 --flavor mpich -- true
mpirun --devices 2 --flavor job -- true; bash --devices 2 --image x -- true
slurm --devices 2 --time-limit soon -- true; bash --devices 2 --max-restarts 1 -- true
bash --devices 2 --submit -- true; slurm --flavor exec --devices 2 --lost-after 9 -- true
slurm --flavor exec --devices 2 --grace 9 -- true; bash --devices 2 --warn-before 90 -- true
mpirun --devices 2 --grace 9 -- true; hostfile --devices 2
slurm --flavor exec --devices 2 -- true :; kubernetes --devices 2 -- true
kubernetes --devices 2 --image x --name A_b -- true; bash --nodes 2 --devices 2 -- true
kubernetes --image x --cpus-per-device 2 -- true; slurm --pvc data -- true; mpirun --env-from-secret A=b:c -- true
slurm --nodes 2 -- true; slurm --nodes 0 --devices 2 -- true; slurm --nodes 2 --rank-table x.json -- true
slurm --nodes 65536 --devices 65536 -- true; slurm --devices 4 --sbatch=--nodes=2 -- true
slurm --devices 4 '--sbatch=-p x -N3' -- true; slurm --devices 4 '--sbatch=-N 1-2' -- true
slurm --devices 4 '--sbatch=--nodes 2-4' -- true; slurm --devices 4 --pin-nodes -- true
slurm --devices 4 --cpus-per-device 0 -- true; slurm --devices 4 --resource nvidia.com/gpu -- true
slurm --devices 4 --resource 'gpu $(touch bad)' -- true; nonsense
mpirun --devices 1 -- echo a : b; mpirun --rank-table table.json -- true
mpirun --devices 1 --env db.password=abc -- true; slurm --devices 1 --env db.password=abc -- true
slurm --flavor exec --devices 1 --env db.password=abc -- true; kubernetes --flavor mpi --image x --env db.password=abc -- true
    """,
    3: """
bash --devices 4 --dp 3 --mp 2 -- true; slurm --nodes 2 --devices 4 --dp 4 -- true
slurm --nodes 2 --devices 4 --mp 3 -- true; slurm --nodes 2 --devices 4 --mp 16 -- true; bash --rank-table table.json -- true
    """,
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(launcher, table_of, code, snapshot):
    table_of({"fe80::1": [0]} if code == 2 else {"h1": [0, 5]})
    assert launcher.refused(code, *(f"render {typed}" for typed in typed_lines(REFUSED[code]))) == snapshot


VALUES = {
    "slurm --devices 4": [
        ("--time-limit", "٣"), ("--sbatch", '--comment="x'), ("--sbatch", "x\n#SBATCH --y"), ("--name", "a\nb"),
        ("--resource", "gpu\n#SBATCH --x"),
    ],
    "kubernetes --image x --env MODE=x": [
        *(("--pvc", value) for value in (
            "", "Data", "a b", "data:", "data:runs", "data:/", "data:/a:b", "data:/a/../etc", "data:/a\nb", "data:/etc",
            "data:/dev/shm/x", "$(touch bad)", "a" * 254, "-x",
        )),
        *(("--env-from-secret", value) for value in (
            "A", "A=b", "A=b:", "A=:c", "A b=c:d", "A=B:c", "A=b:c d", "A=b:..", "A=b\n:c", "RANK=b:c", "MASTER_PORT=b:c",
            "MODE=b:c",
        )),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_values_that_a_format_cannot_hold_are_refused(launcher, kind):
    for option, value in VALUES[kind]:
        told = launcher.refused(2, ["render", *kind.split(), f"{option}={value}", "--", "true"]).partition("\n")[2]
        assert (option in told, "has no option" in told) == (True, False), value


def test_what_other_servers_need_to_have_is_a_warning(launcher, sample_tables):
    table = sample_tables / "rank_table_16pcs.json"
    done = launcher.call("render", "bash", "--rank-table", table, "--", "no-such-program", code=0)
    assert "warning: no-such-program" in done.stderr
    assert "command=(no-such-program)" in done.stdout


@pytest.mark.parametrize("kind", [("mpirun",), *JOBS, ("kubernetes", "--image", "x", "--flavor", "mpi")], ids=" ".join)
def test_tlaunch_is_told_of_idle_devices_and_of_the_port(launcher, sample_tables, kind):
    arguments = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--dp", 2]
    assert launcher.call("render", *kind, *arguments, "--", "true").returncode == 3
    wishes = ["--allow-idle-devices", "--master-port", 29877]
    script = launcher.call("render", *kind, *arguments, *wishes, "--", "true", code=0).stdout
    assert all(f"    {option} \\\n" in script for option in ("--allow-idle-devices", "--master-port 29877"))


def test_a_warning_leaves_time_to_run(launcher):
    """Slurm may send it a minute early, and takes 0 for no limit."""

    def words(limit, *warning):
        return ["render", "slurm", "--devices", 1, "--time-limit", limit, *warning, "--", "true"]

    for limit, seconds in {"6": 360, "2:30": 150, "1:00:00": 3600, "0-1": 3600}.items():
        refused = launcher.refused(2, words(limit, "--warn-before", seconds - 60))
        assert f"--time-limit {limit} ({seconds} s) is too short" in refused
        assert launcher.call(*words(limit, "--warn-before", seconds - 61)).returncode == 0
    assert launcher.call(*words("1-0", "--warn-before", 65535)).returncode == 0
    assert launcher.call(*words("0")).returncode == 0


@pytest.mark.parametrize("kind", [("mpirun",), ("mpirun", "--flavor", "mpich"), *JOBS], ids=" ".join)
def test_secrets_are_exported_and_not_in_a_command(launcher, kind):
    variables = ["--env", "MY_TOKEN=a b", "--env", "PROXY=http://me:pw@host", "--env", "MODE=fast", "--env", "a.mode=x"]
    script = launcher.call("render", *kind, "--devices", 1, *variables, "--", "true").stdout
    assert "export MY_TOKEN='a b' #" in script
    assert "export PROXY=http://me:pw@host #" in script
    assert "--env MODE=fast" in script
    assert "--env a.mode=x" in script
    assert (script.count("a b"), script.count("me:pw")) == (1, 1)
