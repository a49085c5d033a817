"""`tlaunch run --stdin RANK`: a terminal or a pipe is connected to one rank."""

import fcntl
import os
import pty
import shlex
import subprocess
import sys
import termios

import pytest

from launcher.core.events import Hung, RankEnded, Trouble
from launcher.core.machine.proc import waits_at_stdin
from tests.conftest import PATIENCE_S

from .conftest import read_until

DEBUGGED = """
import os
x = 41 + int(os.environ["RANK"])
breakpoint()
y = 2 * x
print("y is", y)
"""
ASKING = """
import os, sys
print("hello", input("Name: "))
sys.exit(int(os.environ["TLAUNCH_ATTEMPT"] == "0"))
"""


@pytest.fixture(name="typed")
def _typed(launcher):
    """Start a command on a terminal of its own; yield a function that types a text after a prompt has appeared."""
    leader, follower = pty.openpty()

    def begin(argv, *turns):
        process = launcher.begin(
            argv, stdin=follower, stdout=follower, stderr=follower, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        )  # fmt: skip
        shown = b""
        for prompt, text in turns:
            shown += read_until(leader, prompt)
            os.write(leader, text)
        code = process.wait(PATIENCE_S)
        os.set_blocking(leader, False)
        return code, (shown + os.read(leader, 1 << 16)).decode().replace("\r\n", "\n")

    yield begin
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize("options", [("--stdin", "0"), ("--stdin", "1", "--no-preload")], ids=" ".join)
def test_a_debugger_can_be_used_in_one_rank_while_the_others_pass_its_breakpoints(launcher, typed, options):
    program = launcher.write("train.py", DEBUGGED)
    run = launcher.argv("run", "-n", 2, *options, "--", sys.executable, program)
    code, shown = typed(run, (b"(Pdb) ", b"n\n"), (b"(Pdb) ", b"p x\n"), (b"(Pdb) ", b"c\n"))
    x = 41 + int(options[1])
    assert f'\n-> print("y is", y)\n(Pdb) p x\n{x}\n(Pdb) c\ny is {2 * x}\n2 ranks succeeded' in shown
    assert (code, launcher.events(Trouble)) == (0, [])


def test_ctrl_c_at_a_prompt_stops_the_run(launcher, typed):
    program = launcher.write("train.py", DEBUGGED)
    code, shown = typed(
        launcher.argv("run", "-n", 2, "--stdin", 0, "--", sys.executable, program), (b"(Pdb) ", b"\x03")
    )
    assert code == 130
    assert "(Pdb) ^C\nSIGINT: stopping all ranks" in shown


def test_a_paused_run_can_be_stopped_in_the_background(launcher, typed):
    program = launcher.write("ask.py", ASKING)
    run, stop = launcher.argv("run", "-n", 1, "--stdin", 0, "--", sys.executable, program), launcher.argv("stop")
    script = f"{shlex.join(run)}; bg; {shlex.join(stop)}; wait"  # the job may have ended, and bash forgets its status
    _, shown = typed(["bash", "--norc", "-ic", script], (b"Name: ", b"\x1a"))
    assert launcher.report.exit_code == 143, shown


def test_the_rank_of_the_next_attempt_reads_on(launcher, typed):
    program = launcher.write("ask.py", ASKING)
    run = launcher.argv("run", "-n", 1, "--stdin", 0, "--max-restarts", 1, "--", sys.executable, program)
    code, shown = typed(run, (b"Name: ", b"one\n"), (b"Name: ", b"two\n"))
    assert (code, "\nName: two\nhello two\n" in shown) == (0, True)


def test_it_is_refused_in_the_background(launcher, typed):
    run = shlex.join(launcher.argv("run", "-n", 1, "--stdin", 0, "--", "true"))
    code, shown = typed(["bash", "--norc", "-ic", f"{run} & wait $!; exit $?"])
    assert (code, "this command is in the background" in shown) == (2, True)


def test_a_rank_that_waits_for_input_does_not_hang(launcher):
    program = 'import os, time\nif os.environ["RANK"] == "0": input()\nelse: time.sleep(2)'
    options = {"stdin": subprocess.PIPE, "bufsize": 0}
    run = launcher.start(
        "run", "-n", 2, "--stdin", 0, "--hang-timeout", 0.5, "--", sys.executable, "-c", program, **options
    )
    assert launcher.first(RankEnded).global_rank == 1  # after four times that limit
    run.stdin.write(b"\n")
    assert (run.wait(PATIENCE_S), launcher.events(Hung)) == (0, [])


def test_a_process_that_waits_for_something_else_does_not_wait_at_stdin(wait_until):
    for code, expected in (("input()", True), ("import threading as t; t.Thread(target=input).start()", True),
                           ("import os; print(flush=True); os.read(os.pipe()[0], 1)", False)):  # fmt: skip
        argv, pipe = [sys.executable, "-c", code], subprocess.PIPE
        with subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True) as process:
            if expected:
                wait_until(lambda pid=process.pid: waits_at_stdin(pid), "waiting")
            else:
                process.stdout.readline()
                assert not waits_at_stdin(process.pid)
            process.kill()


def test_without_it_a_hint_says_how_to_get_input(launcher):
    program = launcher.write("train.py", "import pdb; pdb.set_trace()\nprint()")
    hint = "hint: add `--stdin 0`"
    assert hint in launcher.run("run", "-n", 1, "--", sys.executable, program, input="", code=1).stderr
    assert hint in launcher.call("why", code=0).stdout
    with_input = launcher.run("run", "-n", 1, "--stdin", 0, "--", sys.executable, program, input="q\n", code=1)
    assert "bdb.BdbQuit" in with_input.stderr
    assert hint not in with_input.stderr + launcher.call("why", code=0).stdout


def test_runs_that_refuse_it_do_not_offer_it(launcher, table_of):
    argv, instead = [sys.executable, "-c", "input()"], "hint: to connect one rank to your terminal, use `tlaunch run"
    launcher.run("run", "-n", 1, "--detach", "--", *argv, input="", code=0)
    launcher.call("wait", code=1)
    assert instead in launcher.call("why", code=0).stdout
    assert instead in launcher.python(f"import tlaunch; tlaunch.launch({argv}, devices=1)", input="").stderr
    table = table_of({"127.0.0.1": [0], "127.0.0.2": [1]})
    for words, is_offered in (
        ([], True), (["--engine", "mpi"], False), (["--rank-table", table.name, "--server", "127.0.0.1"], False)
    ):  # fmt: skip
        devices = [] if "--rank-table" in words else ["-n", 1]
        told = launcher.run("run", *devices, *words, "--dry-run", "--", "true", input="data", code=0).stderr
        assert ("add --stdin RANK" in told, "pass a file to the program" in told) == (is_offered, True)


def test_what_it_cannot_be_combined_with_is_refused(launcher, table_of, snapshot):
    table = table_of({"127.0.0.1": [0], "127.0.0.2": [1]})
    told = launcher.refused(
        2, "run -n 2 --stdin 2 -- true", "run -n 2 --stdin -1 -- true", "run --stdin 0 --detach -- true",
        "run --stdin 0 --console all -- true", "run -n 1 --stdin 0 --engine mpi -- true",
        f"run --rank-table {table.name} --stdin 0 -- true",
    )  # fmt: skip
    assert told == snapshot
