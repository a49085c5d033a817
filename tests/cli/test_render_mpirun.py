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
import os, sys, time
time.sleep(0.5)
print(os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["DEVICE_ID"], repr(os.environ["ODD"]), sys.argv[1:])
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
        done = launcher.call("render", "mpirun", "--flavor", flavor, "-o", "mpirun.sh", *arguments)
        assert done.returncode == 0, done.stderr
        return subprocess.Popen(
            ["bash", launcher.directory / "mpirun.sh", *words],
            cwd=launcher.directory,
            env=launcher.environment({**AS_ROOT, **(env or {})}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )

    return start


def ended(process):
    try:
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, said


def test_ranks_are_those_of_the_table(launcher, script):
    table = launcher.directory / "table.json"
    devices = ", ".join(f'{{"device_id": "{7 - rank}", "rank_id": "{rank}"}}' for rank in range(4))
    table.write_text(
        '{"version": "1.0", "server_count": "1", "status": "completed", "server_list": '
        f'[{{"server_id": "127.0.0.1", "device": [{devices}]}}]}}'
    )
    odd = "a b\n\"c\" $(touch bad) `touch bad` 'd'"
    code, said = ended(
        script("--rank-table", table, "--mp", 2, "--env", f"ODD={odd}", "--", sys.executable, "-c", SHOW, *ODD)
    )
    assert code == 0, said
    [run] = [path for path in launcher.runs.iterdir() if not path.is_symlink()]
    for rank in range(4):
        log = (run / f"device{rank}" / "train.log").read_text()
        assert log == f"{rank} {rank} {7 - rank} {odd!r} {ODD}\n"
    assert not (launcher.directory / "bad").exists()


SHOW_SECRET = """
import os, time
from pathlib import Path
time.sleep(0.5)
def cmdline(process):
    try:
        return process.read_bytes()
    except OSError:
        return b""
print(repr(os.environ["MY_TOKEN"]), [1 for process in Path("/proc").glob("[0-9]*/cmdline") if b"hid" b"den" in cmdline(process)])
"""


def test_secrets_arrive_and_are_not_in_command_lines(launcher, script):
    secret = "hid" + "den a;b\n\"c\" $(touch bad) 'd',e=f"
    code, said = ended(script("--devices", 2, "--env", f"MY_TOKEN={secret}", "--", sys.executable, "-c", SHOW_SECRET))
    assert code == 0, said
    assert [log.read_text() for log in launcher.runs.glob("2*/device?/train.log")] == [f"{secret!r} []\n"] * 2
    assert not (launcher.directory / "bad").exists()


@pytest.mark.parametrize("chosen", [[], ["--master-port", "29877"]], ids=["by the job", "chosen"])
def test_a_port_of_the_shell_is_not_taken(launcher, script, chosen):
    shell = {"MASTER_PORT": "31555", "MASTER_ADDR": "elsewhere"}
    command = ["--", "sh", "-c", "sleep 0.5; echo $MASTER_PORT $MASTER_ADDR"]
    code, said = ended(script("--devices", 2, *chosen, *command, env=shell))
    assert code == 0, said
    first, second = (log.read_text().split() for log in launcher.runs.glob("2*/device?/train.log"))
    assert first == second
    assert first[1] == "127.0.0.1"
    assert first[0] in chosen or 20000 <= int(first[0]) < 30000


def test_what_the_environment_calls_as_a_script_might_call_its_own_arrives(launcher, script):
    shell = dict.fromkeys(("name", "count", "hosts", "here", "variable", "mpirun", "code"), "mine")
    shell["TMPDIR"] = str(launcher.directory / "a, b")
    Path(shell["TMPDIR"]).mkdir()
    command = ["--", "sh", "-c", f"sleep 0.5; echo {' '.join(f'${name}' for name in shell)}"]
    code, said = ended(script("--devices", 1, *command, env=shell))
    assert code == 0, said
    [log] = launcher.runs.glob("2*/device0/train.log")
    assert log.read_text() == f"{' '.join(shell.values())}\n"


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
    assert launcher.processes() == []
