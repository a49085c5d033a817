"""The script of `tlaunch render mpirun`, run under a real Open MPI or MPICH on this machine."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Open MPI's mpirun may hang on ranks that end at once.
SHOW = """
import os, subprocess, sys, time
time.sleep(0.5)
seen = subprocess.getoutput("cat /proc/[0-9]*/cmdline 2> /dev/null | grep -ac 'hid[d]en'")
where = [os.environ[name] for name in ("RANK", "LOCAL_RANK", "DEVICE_ID")]
print(*where, [os.environ["ODD"], os.environ["MY_TOKEN"], seen], sys.argv[1:])
"""
ODD = ["a  b", 'it\'s "x"', "$(touch bad)", "`touch bad`", "new\nline", "--help", "-x", "--", "*", "\\", "", "::", "é"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
BESIDE = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def flavor_here():
    """Which MPI `mpirun` belongs to; None where there is none."""
    found = shutil.which("mpirun", path=BESIDE)
    if found is None:
        return None
    told = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    return "mpich" if "HYDRA" in told else "openmpi"


@pytest.fixture(name="script")
def _script(launcher):
    flavor = flavor_here()
    if flavor is None:
        pytest.skip("there is no mpirun here")

    def start(*arguments, env=None, words=()):
        launcher.call("render", "mpirun", "--flavor", flavor, "-o", "mpirun.sh", *arguments, code=0)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8"}
        return launcher.begin(["bash", "mpirun.sh", *words], env={**AS_ROOT, **(env or {})}, **pipes)

    return start


def ended(process):
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said


def test_ranks_are_those_of_the_table(launcher, script):
    devices = [{"device_id": str(7 - rank), "rank_id": str(rank)} for rank in range(4)]
    server = {"server_id": "127.0.0.1", "device": devices}
    table = {"version": "1.0", "server_count": "1", "status": "completed", "server_list": [server]}
    odd, secret = "a b\n\"c\" $(touch bad) `touch bad` 'd'", "hidden a;b\n\"c\" $(touch bad) 'd',e=f"
    options = ["--rank-table", launcher.write("table.json", table), "--mp", 2]
    variables = ["--env", f"ODD={odd}", "--env", f"MY_TOKEN={secret}"]
    code, said = ended(script(*options, *variables, "--", sys.executable, "-c", SHOW, *ODD))
    assert code == 0, said
    [run] = [path for path in launcher.runs.iterdir() if not path.is_symlink()]
    for rank in range(4):
        log = (run / f"device{rank}" / "train.log").read_text()
        assert log == f"{rank} {rank} {7 - rank} {[odd, secret, '0']} {ODD}\n"
    assert not (launcher.directory / "bad").exists()


def test_the_environment_is_left_alone(launcher, script):
    shell = dict.fromkeys(("name", "count", "hosts", "here", "variable", "mpirun", "code"), "mine")
    shell["TMPDIR"] = str(launcher.directory / "a, b")
    Path(shell["TMPDIR"]).mkdir()
    program = f"sleep 0.5; echo $MASTER_PORT $MASTER_ADDR {' '.join(f'${name}' for name in shell)}"
    meeting = {"MASTER_PORT": "31555", "MASTER_ADDR": "elsewhere"}
    code, said = ended(script("--devices", 2, "--", "sh", "-c", program, env={**shell, **meeting}))
    assert code == 0, said
    first, second = (log.read_text().split(maxsplit=2) for log in launcher.runs.glob("2*/device?/train.log"))
    assert first == second
    assert first[1:] == ["127.0.0.1", f"{' '.join(shell.values())}\n"]
    assert 20000 <= int(first[0]) < 30000


def test_idle_devices(launcher, script, sample_tables):
    table = launcher.directory / "table.json"
    text = (sample_tables / "rank_table_4pcs.json").read_text()
    table.write_text(re.sub(r'"server_id": *"[^"]*"', '"server_id": "127.0.0.1"', text))
    arguments = ["--rank-table", table, "--dp", 2, "--allow-idle-devices"]
    code, said = ended(script(*arguments, "--", "sh", "-c", 'sleep 0.5; echo "$WORLD_SIZE"; cat "$RANK_TABLE_FILE"'))
    assert code == 0, said
    logs = [log.read_text() for log in launcher.runs.glob("2*/device?/train.log")]
    assert [log[:2] for log in logs] == ["2\n"] * 2
    assert not [log for log in logs if '"rank_id": "2"' in log]


def test_a_failure_reaches_the_caller(script):
    code, said = ended(script("--devices", 2, "--", "sh", "-c", "sleep 1; if [ $RANK = 1 ]; then exit 7; fi; sleep 20"))
    assert code in {7, 9}, said  # MPICH kills the others, and tells that


def test_sigterm_ends_the_ranks(launcher, script, wait_until):
    process = script("--devices", 2, "--env", f"HERE={launcher.directory}", "--", "sh", "-c", "echo ready; sleep 1000")

    def ready():
        logs = list(launcher.runs.glob("*/device?/train.log")) if launcher.runs.exists() else []
        return len({log.resolve() for log in logs if "ready" in log.read_text()}) == 2

    wait_until(ready, "both ranks")
    process.send_signal(signal.SIGTERM)
    code, _ = ended(process)
    assert code != 0
    wait_until(lambda: not launcher.processes(), "the end of what mpirun has killed")
