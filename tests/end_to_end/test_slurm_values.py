"""Values that a shell, Slurm or a job file could take for something else reach ranks as they are, or are refused.

By `tlaunch run --engine slurm` and by rendered scripts in jobs of a real Slurm, and by an mpirun that is given rendered
files. Whatever is executed of a value leaves a file of the name `bad`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from .conftest import TLAUNCH, TOLD, own_address, table_of

PATIENCE_S = 120
NOT_UTF_8 = "\udcff\udcfe"
ODD = " a b'\"\\$(touch bad)`touch bad`;&|*\n\té%j,x=y--"
ODD_NAME = " n'\"\\$(touch bad)`touch bad`;&|*é%j,x=y--"  # as ODD, but for control characters, which names may not have
WORDS = [
    "a  b", "it's \"x\"", "$(touch bad)", "`touch bad`", "a;b&c|d", "-n", "--help", "-x", "--", "*", "?", "~", "{a,b}", "!",
    "$HOME", "", "'", "\\", "trailing\\", "::", "K=V", "a,b", "%j%t", "#x", "é", "new\nline", "t\tb", "\r", "a\r\nb",
    "\n#SBATCH --comment=bad\n", "\x1b[31m",
]  # fmt: skip
GIVEN = {"G1": ODD, "G2": "", "G-3": "-x", "G.4": "a,b", "-G5": "--", "G6": "a\r\nb", "G_TOKEN": f"hidden{ODD}"}
INHERITED = {"I1": ODD + NOT_UTF_8, "I2": "", "I.3": ODD, "I 4": "a,b", "I5": "a\r\nb"}
# What some script might call its own variables.
INHERITED |= {
    name: f"my {name}" for name in ("name", "node", "tasks", "address", "count", "run", "step", "code", "hosts", "here")
}
NO_NODES = ["-x", "$(touch bad)", "n[1-2]", "n1\n", "\x1b[2J"]

pytestmark = [pytest.mark.distributed, pytest.mark.slow, pytest.mark.timeout(600)]


class Place:
    """A directory of an odd name, with a rank table and a directory for temporary files, both of odd names."""

    def __init__(self, directory, environment):
        self.directory = directory / f"d{ODD}"
        self.temporary = self.directory / f"-t{ODD}"
        self.temporary.mkdir(parents=True)
        self.table, self.runs = f"-t{ODD}.json", f"-r{ODD}"
        self.environment = {**environment, **INHERITED, "TMPDIR": str(self.temporary)}

    def write_table(self, *servers, name=None):
        return table_of(self.directory / (name or self.table), servers, 1).name

    def __call__(self, *argv, check=True):
        """To the end; what hangs is killed with it."""
        done = subprocess.run(
            list(map(str, argv)), cwd=self.directory, env=self.environment, stdin=subprocess.DEVNULL, capture_output=True,
            encoding="utf-8", errors="backslashreplace", timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done

    def told(self):
        [run] = [path for path in (self.directory / self.runs).iterdir() if path.is_dir() and not path.is_symlink()]
        logs = sorted(run.glob("device*/train.log"))
        return run.name, [json.loads(log.read_text()) for log in logs]

    def check(self, told, words=tuple(WORDS), given=None):
        """Nothing was changed on the way, and nothing is left of it."""
        wanted = {**INHERITED, **(GIVEN if given is None else given), "TMPDIR": self.environment["TMPDIR"]}
        for rank in told:
            assert rank["words"] == list(words)
            assert rank["cwd"] == str(self.directory)
            assert {name: rank["env"].get(name) for name in wanted} == wanted
        self.check_untouched()

    def check_untouched(self):
        assert not list(self.directory.parent.rglob("bad"))
        assert not Path("/bad").exists()
        assert not list(self.temporary.iterdir())


@pytest.fixture(name="place")
def _place(slurm, tmp_path):
    return Place(tmp_path, slurm)


def wait_for_end(place, job):
    deadline = time.monotonic() + PATIENCE_S
    while place("squeue", "--noheader", f"--jobs={job}", check=False).stdout:
        assert time.monotonic() < deadline, "the job does not end"
        time.sleep(0.05)


def given(pairs):
    return [word for name, value in pairs.items() for word in ("--env", f"{name}={value}")]


@pytest.mark.parametrize("asked", [(), ("table", "--mpi-ranks")], ids=["nodes", "table"])
def test_all_arrives_by_agents(place, asked):
    """Words, variables, directories, names, and what is only for srun."""
    table = ("--rank-table", place.write_table("n3", "n1")) if asked else ("--devices", 1)
    of_srun = (
        "--engine-option=--job-name= $(touch bad)'\"%j",
        "--engine-option",
        f"--export=ALL,OF_SRUN={ODD_NAME[:-9]}",
    )
    options = (*table, *asked[1:], "--runs-dir", place.runs, "--name", ODD_NAME, "--join-timeout", 60, *of_srun)
    words = [*WORDS, ":", NOT_UTF_8]
    run = (*TLAUNCH, "run", "--engine", "slurm", *options, *given(GIVEN), "--", sys.executable, TOLD, *words)
    place("salloc", "--nodes=3" if asked else "--nodes=2", *run)
    name, told = place.told()
    assert name.partition("-")[2].partition("-")[2] == ODD_NAME
    assert [rank["env"]["SLURMD_NODENAME"] for rank in told] == (["n3", "n1"] if asked else ["n1", "n2"])
    place.check(told, words, {**GIVEN, "OF_SRUN": ODD_NAME[:-9]})


@pytest.mark.parametrize(
    ("flavor", "name", "temporary"),
    [("run", ODD_NAME, None), ("exec", ODD_NAME, None), ("exec", ":", "-tmp")],
    ids=["agents", "tasks", "tasks of a run of the name :"],
)
def test_all_arrives_by_a_rendered_script(place, flavor, name, temporary):
    """Nodes need not be called as their machines are: here all of them are one."""
    comment = "c $(touch bad) ' \\ # x;%j"
    directives = ("--sbatch=--comment='c $(touch bad) '\"'\"' \\ # x;%j'", "--sbatch=--account=a#c,%j")
    options = ("--rank-table", place.write_table("n3", "n1"), "--runs-dir", place.runs, "--name", name, *directives)
    command = ("--", sys.executable, TOLD, *WORDS)
    script = f"-o{ODD_NAME}.sh"
    place(*TLAUNCH, "render", "slurm", "--flavor", flavor, *options, *given(GIVEN), "-o", script, *command)
    if temporary is not None:
        place.temporary = place.directory / temporary
        place.temporary.mkdir()
        place.environment["TMPDIR"] = temporary
    job = place("sbatch", "--parsable", f"./{script}").stdout.strip()
    shown = place("scontrol", "show", "job", job).stdout
    assert f"JobName={name}\n" in shown
    assert f"Comment={comment}" in shown
    assert "Account=a#c,%j " in shown
    wait_for_end(place, job)
    said = (place.directory / f"slurm-{job}.out").read_text()
    assert "2 ranks" in said
    run_name, told = place.told()
    assert name in run_name
    assert [rank["env"]["SLURMD_NODENAME"] for rank in told] == ["n3", "n1"], said
    place.check(told)


def test_servers_that_no_node_can_be_are_refused(place):
    """Before there is a run; what control characters they have is not shown to the terminal."""
    tables = [place.write_table(name, name=f"{number}.json") for number, name in enumerate(NO_NODES)]
    loop = 'for table; do "$PYTHON" -m launcher run --engine slurm --rank-table "$table" -- true; echo "$?"; done'
    place.environment["PYTHON"] = sys.executable
    done = place("salloc", "--quiet", "sh", "-c", loop, "-", *tables)
    assert done.stdout.split() == ["3"] * len(NO_NODES), done.stderr
    assert done.stderr.count("error: ") == done.stderr.count("of the rank table is not a node of job") == len(NO_NODES)
    assert "\x1b" not in done.stderr
    assert "error: n1\\n of the" in done.stderr
    assert "--nodelist=$" not in done.stderr
    assert not list(place.directory.glob("runs"))
    place.check_untouched()


@pytest.mark.parametrize("kind", ["hostfile", "rankfile"])
def test_all_arrives_by_an_mpirun_that_is_given_converted_files(mpirun, tmp_path, kind):
    """Open MPI 5 takes a comma in a hostfile's path for two of them, so there is none."""
    place = Place(tmp_path, {name: value for name, value in os.environ.items() if not name.startswith("TLAUNCH_")})
    table = place.write_table(own_address())
    files = {each: tmp_path / f"-{each}{ODD_NAME}".replace(",", "") for each in dict.fromkeys(("hostfile", kind))}
    for each, path in files.items():
        place(*TLAUNCH, "table", "convert", place.directory / table, "--to", each, "-o", path)
    mpirun.directory = place.directory
    named = [word for each, path in files.items() for word in (f"--{each}", path)]
    binding = ("--bind-to", "none") if kind == "hostfile" else ()  # a rankfile's slot is a core
    words = [*WORDS, NOT_UTF_8]
    more = ("--runs-dir", place.runs, "--name", ODD_NAME, *given(GIVEN), "--", sys.executable, TOLD, *words)
    done = mpirun.exec(1, "--rank-table", table, *more, options=(*binding, *named), env=place.environment)
    assert done.returncode == 0, done.stderr
    name, told = place.told()
    assert name.startswith(ODD_NAME)
    assert len(told) == 1
    place.check(told, words)
