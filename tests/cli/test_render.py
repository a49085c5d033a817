"""`tlaunch render`: what it writes, what it refuses, and templates of one's own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from launcher.engines.render.job import VARIABLES
from launcher.engines.render.kinds import KINDS

ODD = ["a b", 'it\'s "x"', "$(touch bad)", "`touch bad`", "new\nline", "--help", "*", "\\", "", "%t #x"]
SCRIPTS = [
    ("bash",), ("mpirun",), ("mpirun", "--flavor", "mpich"), ("slurm",), ("slurm", "--restarts", "2"),
    ("slurm", "--flavor", "exec"), ("slurm", "--flavor", "exec", "--restarts", "2"),
]  # fmt: skip
EVERY = [
    *SCRIPTS, ("hostfile",), ("hostfile", "--flavor", "mpich"), ("rankfile",),
    ("kubernetes", "--image", "x"), ("kubernetes", "--image", "x", "--flavor", "mpi"),
]  # fmt: skip


def command_of(kind):
    return () if kind[0] in {"hostfile", "rankfile"} else ("--", "true")


@pytest.fixture(name="shellcheck", scope="module")
def _shellcheck():
    found = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if found is None:
        pytest.skip("shellcheck is not installed")
    return found


@pytest.mark.parametrize("kind", SCRIPTS, ids=" ".join)
@pytest.mark.parametrize("servers", [{"h1": [0, 1]}, {"h2": [0, 1, 3], "h1": [2]}], ids=["one", "two"])
def test_shellcheck_has_nothing_to_say(launcher, shellcheck, kind, servers, table_of):
    table = table_of(servers)
    odd = [word for value in ODD for word in ("--env", f"X={value}")]
    done = launcher.call("render", *kind, "--rank-table", table, *odd, "--", sys.executable, "-c", "pass", *ODD)
    checked = subprocess.run([shellcheck, "-"], input=done.stdout, capture_output=True, text=True, check=False)
    assert (done.returncode, checked.stdout) == (0, "")
    assert done.stdout.startswith("#!/usr/bin/env bash\n")


@pytest.mark.parametrize("kind", [("slurm",), ("slurm", "--flavor", "exec")], ids=" ".join)
def test_shellcheck_of_a_job_on_any_nodes(launcher, shellcheck, kind):
    """Such a script makes the rank table when it starts, where tasks need one."""
    wishes = ["--nodes", 3, "--devices", 2, "--dp", 5, "--allow-idle-devices", "--runs-dir", "r 'x' $(touch bad)"]
    script = launcher.call("render", *kind, *wishes, "--", "true").stdout
    checked = subprocess.run([shellcheck, "-"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")
    assert script.startswith("#!/usr/bin/env bash\n# 5 ranks on 3 servers")


def test_shellcheck_of_the_script_of_an_mpi_job(launcher, shellcheck, table_of):
    table = table_of({"h1": [0], "h2": [1]})
    odd = [word for value in ODD for word in ("--env", f"X={value}")]
    secret = ["--env", "MY_TOKEN=a b", "--env-from-secret", "HUB_TOKEN=hub:token", "--cwd", "/a 'b'"]
    kind = ["kubernetes", "--flavor", "mpi", "--image", "x", "--rank-table", table]
    done = launcher.call("render", *kind, *odd, *secret, "--", "true", *ODD)
    script = next(yaml.safe_load_all(done.stdout))["data"]["mpirun.sh"]
    checked = subprocess.run([shellcheck, "-"], input=script, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout) == (0, "")


def test_shellcheck_of_a_script_with_idle_devices(launcher, shellcheck, sample_tables):
    """Such a script holds the reduced table, and chooses a port if it was given none."""
    arguments = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--dp", 2, "--allow-idle-devices"]
    script = launcher.call("render", "bash", *arguments, "--", "true").stdout
    assert subprocess.run([shellcheck, "-"], input=script, text=True, check=False).returncode == 0
    assert '"rank_id": "1"' in script
    assert '"rank_id": "2"' not in script


def test_hostfile_and_rankfile(launcher, table_of, snapshot):
    """Servers are in the order of their ranks, whatever the table's is; a rank's slot is its local rank."""
    table_of({"h1": [3], "h2": [0, 1, 2]})
    hostfile = "render hostfile --rank-table table.json --flavor"
    assert launcher.scene(f"{hostfile} openmpi", f"{hostfile} mpich", code=0) == snapshot(name="hostfile")
    table_of({"h1": [0, 2], "h2": [1, 3]})
    assert launcher.scene("render rankfile --rank-table table.json", code=0) == snapshot(name="rankfile")
    assert launcher.refused(3, "render hostfile --rank-table table.json") == snapshot(name="taking turns")


@pytest.mark.parametrize("kind", [("hostfile",), ("rankfile",), ("mpirun",), ("slurm",)], ids=" ".join)
def test_names_that_a_format_cannot_hold_are_refused(launcher, kind, table_of):
    for name in ("a b", "-x", "a\nrank 0=evil slot=0", "a:2", "$(touch bad)", "`touch bad`", "'", "#h"):
        table = table_of({name: [0]})
        launcher.refused(2, ["render", *kind, "--rank-table", table, "-o", "out", *command_of(kind)])


# --- where the text goes ---


@pytest.mark.parametrize("kind", EVERY, ids=" ".join)
def test_a_file_is_what_stdout_would_be(launcher, kind):
    """Whole, executable where it is a script, and alone in its directory."""
    command = command_of(kind)
    shown = launcher.call("render", *kind, "--devices", 2, "--name", "n", *command)
    done = launcher.call("render", *kind, "--devices", 2, "--name", "n", "-o", "made", *command)
    made = launcher.directory / "made"
    assert (shown.returncode, done.returncode, done.stdout) == (0, 0, "")
    assert made.read_text() == shown.stdout
    assert shown.stdout.endswith("\n")
    assert bool(made.stat().st_mode & 0o100) == KINDS[kind[0]].is_script
    assert [path.name for path in launcher.directory.iterdir()] == ["made"]


def test_a_file_that_exists_stays(launcher):
    made = launcher.directory / "made"
    made.write_text("mine")
    assert launcher.call("render", "hostfile", "--devices", 2, "-o", "made").returncode == 2
    assert made.read_text() == "mine"
    assert launcher.call("render", "hostfile", "--devices", 2, "-o", "made", "--force").returncode == 0
    assert "slots=2" in made.read_text()


def test_secrets_are_told_and_kept_from_others(launcher):
    """A job file needs them; nobody else may read it."""
    secrets = ["--env", "API_KEY=abc", "-o", "run.sh", "--", "true", "--password", "abc"]
    done = launcher.call("render", "bash", "--devices", 1, *secrets)
    assert "API_KEY, COMMAND" in done.stderr
    assert "abc" not in done.stderr
    assert (launcher.directory / "run.sh").stat().st_mode & 0o777 == 0o700


# --- checks of `tlaunch run` ---


REFUSED = {
    2: r"""
bash --devices 2 --rank-table x.json -- true; bash --rank-table x.json -- true; bash --devices 2 -- no-such-program
bash --devices 2 -- python no-such-script.py; bash --devices 2 --env RANK=1 -- true
bash --devices 2 --set train.nonsense=1; bash --devices 2 --name a/b -- true; bash --devices 2 --flavor mpich -- true
mpirun --devices 2 --flavor job -- true; bash --devices 2 --image x -- true; hostfile --devices 2 -- true
slurm --devices 2 --time-limit soon -- true; bash --devices 2 --max-restarts 1 -- true
bash --devices 2 --submit -- true; slurm --flavor exec --devices 2 --lost-after 9 -- true
slurm --flavor exec --devices 2 --grace 9 -- true; bash --devices 2 --warn-before 90 -- true
mpirun --devices 2 --grace 9 -- true; hostfile --devices 2 --master-port 29877
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
    """,
    3: """
bash --devices 4 --dp 3 --mp 2 -- true; slurm --nodes 2 --devices 4 --dp 4 -- true
slurm --nodes 2 --devices 4 --mp 3 -- true; slurm --nodes 2 --devices 4 --mp 16 -- true; bash --rank-table table.json -- true
    """,
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused(launcher, table_of, code, snapshot):
    table_of({"fe80::1": [0]} if code == 2 else {"h1": [0, 5]})
    typed = [f"render {each.strip()}" for each in REFUSED[code].replace("\n", ";").split(";") if each.strip()]
    assert launcher.refused(code, *typed) == snapshot


@pytest.mark.parametrize(
    "arguments",
    [
        ("slurm", "--devices", "2", "--time-limit", "٣"),
        ("slurm", "--devices", "2", '--sbatch=--comment="x'),
        ("slurm", "--devices", "2", "--sbatch", "x\n#SBATCH --y"),
        ("slurm", "--devices", "2", "--name", "a\nb"),
        ("slurm", "--devices", "4", "--resource", "gpu\n#SBATCH --x"),
    ],
    ids=repr,
)
def test_what_a_script_could_not_take_is_refused(launcher, arguments):
    launcher.refused(2, ["render", *arguments, "--", "true"])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--pvc", ""), ("--pvc", "Data"), ("--pvc", "a b"), ("--pvc", "data:"), ("--pvc", "data:runs"), ("--pvc", "data:/"),
        ("--pvc", "data:/a:b"), ("--pvc", "data:/a/../etc"), ("--pvc", "data:/a\nb"), ("--pvc", "data:/etc"),
        ("--pvc", "data:/dev/shm/x"), ("--pvc", "$(touch bad)"), ("--pvc", "a" * 254), ("--pvc", "-x"),
        ("--env-from-secret", "A"), ("--env-from-secret", "A=b"), ("--env-from-secret", "A=b:"), ("--env-from-secret", "A=:c"),
        ("--env-from-secret", "A b=c:d"), ("--env-from-secret", "A=B:c"), ("--env-from-secret", "A=b:c d"),
        ("--env-from-secret", "A=b:.."), ("--env-from-secret", "A=b\n:c"), ("--env-from-secret", "RANK=b:c"),
        ("--env-from-secret", "MASTER_PORT=b:c"), ("--env-from-secret", "MODE=b:c"),
    ],
)  # fmt: skip
def test_what_kubernetes_could_not_take_is_refused(launcher, option, value):
    words = ["render", "kubernetes", "--image", "x", "--env", "MODE=x", f"{option}={value}", "--", "true"]
    told = launcher.refused(2, words).partition("\n")[2]
    assert (option in told, "has no option" in told) == (True, False)


def test_what_may_be_a_secret_is_not_shown(launcher):
    done = launcher.call("render", "kubernetes", "--image", "x", "--env-from-secret", "A_TOKEN=s3cr3t", "--", "true")
    assert done.returncode == 2
    assert "s3cr3t" not in done.stderr


def test_what_other_servers_need_to_have_is_a_warning(launcher, sample_tables):
    table = sample_tables / "rank_table_16pcs.json"
    done = launcher.call("render", "bash", "--rank-table", table, "--", "no-such-program")
    assert done.returncode == 0
    assert "warning: no-such-program" in done.stderr
    assert "command=(no-such-program)" in done.stdout


@pytest.mark.parametrize(
    "kind",
    [("mpirun",), ("slurm",), ("slurm", "--flavor", "exec"), ("kubernetes", "--image", "x", "--flavor", "mpi")],
    ids=" ".join,
)
def test_tlaunch_exec_is_told_of_idle_devices(launcher, sample_tables, kind):
    """It would refuse them otherwise, as `tlaunch render` does without the option."""
    arguments = ["--rank-table", sample_tables / "rank_table_4pcs.json", "--dp", 2]
    assert launcher.call("render", *kind, *arguments, "--", "true").returncode == 3
    done = launcher.call("render", *kind, *arguments, "--allow-idle-devices", "--", "true")
    assert done.returncode == 0
    assert "    --allow-idle-devices \\\n" in done.stdout


@pytest.mark.parametrize(
    ("limit", "warning"), [("6", 300), ("2:30", 90), ("1:00:00", 3540), ("1-0", 65535), ("0-1", 3590)]
)
def test_a_warning_leaves_time_to_run(launcher, limit, warning):
    """Slurm may send it a minute early, and takes 0 for no limit."""
    limits = {"1-0": 86400, "6": 360, "2:30": 150, "1:00:00": 3600, "0-1": 3600}
    arguments = ["--devices", 1, "--time-limit", limit, "--warn-before"]
    done = launcher.call("render", "slurm", *arguments, warning, "--", "true")
    if limits[limit] > warning + 60:
        assert done.returncode == 0
    else:
        assert done.returncode == 2
        assert f"--time-limit {limit} is {limits[limit]} s" in done.stderr
        assert launcher.call("render", "slurm", *arguments, limits[limit] - 61, "--", "true").returncode == 0
    assert launcher.call("render", "slurm", "--devices", 1, "--time-limit", "0", "--", "true").returncode == 0


@pytest.mark.parametrize(
    "kind", [("mpirun",), ("mpirun", "--flavor", "mpich"), ("slurm",), ("slurm", "--flavor", "exec")], ids=" ".join
)
def test_secrets_are_exported_and_not_in_a_command(launcher, kind):
    variables = ["--env", "MY_TOKEN=a b", "--env", "PROXY=http://me:pw@host", "--env", "MODE=fast", "--env", "a.key=x"]
    script = launcher.call("render", *kind, "--devices", 1, *variables, "--", "true").stdout
    assert "export MY_TOKEN='a b' #" in script
    assert "export PROXY=http://me:pw@host #" in script
    assert "--env MODE=fast" in script
    assert "--env a.key=x" in script
    assert (script.count("a b"), script.count("me:pw")) == (1, 1)


# --- templates ---


def test_the_list_tells_of_everything(launcher):
    listed = launcher.call("render", "--list").stdout
    templates = [template for kind in KINDS.values() for template in kind.templates.values()]
    assert [name for name in (*KINDS, *templates, *VARIABLES) if name not in listed] == []
    assert [name for name in VARIABLES if f"  {name} " not in listed] == []


@pytest.fixture(name="own")
def _own(launcher):
    """Write a template of one's own and render with it."""

    def render(text, *arguments, name="hostfile.openmpi.j2", kind="hostfile"):
        directory = launcher.directory / "own"
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(text)
        return launcher.call("render", kind, "--devices", 2, "--templates", "own", *arguments)

    return render


def test_a_template_of_ones_own_is_taken(own):
    done = own("".join(f"{name}={{{{ {name} }}}}\n" for name in VARIABLES))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("version=")
    assert len(done.stdout.splitlines()) == len(VARIABLES)


def test_a_part_of_a_built_in_template_can_be_replaced(own):
    done = own("my-exec {{ command | join(' ') }}\n", "--", "true", name="exec.j2", kind="mpirun")
    assert "    my-exec true &" in done.stdout


WRONG = (
    "fine\n{% if %}\n", "fine\n\n{{ nonsense }}\n", "{{ servers[0].nonsense }}\n", "\n{{ version | nonsense }}\n",
    "\n{{ 1 / 0 }}\n", "{{ name + 1 }}\n", "\n{% include 'nonsense.j2' %}\n", "<# \n",
)  # fmt: skip


def test_a_wrong_template_is_told_with_file_and_line(launcher, snapshot):
    """No traceback, no output; nor where there is no such directory."""
    for number, text in enumerate(WRONG):
        launcher.write(f"own{number}/hostfile.openmpi.j2", text)
    launcher.write("own/bash.sh.j2", "{{ command | join(' ') | word }}\n")
    hostfile = "render hostfile --devices 2 -o made --templates"
    typed = [f"{hostfile} own{number}" for number in range(len(WRONG))]
    typed += [f"{hostfile} nowhere", "render bash --devices 2 --templates own -- echo a"]
    assert launcher.refused(2, *typed) == snapshot
