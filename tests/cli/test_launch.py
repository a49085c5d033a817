"""`launcher.launch`: what Python programs and notebooks run instead of `tlaunch run`."""

import contextlib
import io
import os
import signal
import subprocess
import sys

import psutil
import pytest

import launcher
from launcher.core.errors import RefusedLayoutError, UnreadableError, UsageError

NOTEBOOK = """
import asyncio, json, os, signal, sys, threading

import launcher

assert not os.path.exists(getattr(sys.modules["__main__"], "__file__", ""))
assert not {"click", "launcher.cli"} & set(sys.modules)
before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
going_on = threading.Event()
threading.Thread(target=going_on.wait, daemon=True).start()


async def cells():
    here = launcher.launch(["sh", "-c", "echo first; exit 0"], devices=2, runs_dir="runs")
    apart = await asyncio.to_thread(
        launcher.launch, ["sh", "-c", "echo second; exit $((RANK * 7))"], devices=2, runs_dir="runs", console="none"
    )
    return here, apart


here, apart = asyncio.run(cells())
assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)]
assert os.waitstatus_to_exitcode(os.system("exit 3")) == 3
print(json.dumps([here.exit_code, apart.exit_code, apart.verdict.culprit, len(here.attempts), str(apart.run_dir)]))
"""


@pytest.fixture(name="launch")
def _launch(tmp_path, monkeypatch):
    monkeypatch.delenv("TLAUNCH_RUNS_DIR", raising=False)
    return lambda *arguments, **options: launcher.launch(*arguments, **{"runs_dir": tmp_path / "runs", **options})


def test_a_notebook_runs_twice_and_goes_on(tmp_path):
    options = {"input": NOTEBOOK, "capture_output": True, "text": True, "timeout": 60}
    done = subprocess.run([sys.executable, "-"], cwd=tmp_path, check=False, **options)
    assert done.returncode == 0, done.stderr
    first, told = done.stdout.splitlines()
    assert first == "first"
    run_dir = max((tmp_path / "runs").resolve().glob("2*"))
    assert told.startswith(f'[0, 7, 1, 1, "{run_dir.parent}')
    assert (run_dir / "device1" / "train.log").exists()


def test_a_result_tells_how_each_attempt_went(launch):
    result = launch(["sh", "-c", "exit 5"], devices=2, max_restarts=1, name="twice", env={"LEVEL": "1"})
    assert result.exit_code == 5
    assert [attempt.number for attempt in result.attempts] == [0, 1]
    assert result.verdict == result.attempts[-1].verdict
    assert result.run_dir.name.endswith("-twice")
    assert "LEVEL=1" in (result.run_dir / "device0" / "env.log").read_text()


def test_a_time_limit_is_no_failure_of_a_rank(launch):
    result = launch(["sleep", "1000"], devices=2, timeout=0.5)
    assert (result.exit_code, result.verdict) == (124, None)
    with pytest.raises(launcher.RunFailedError, match=r": stopped after .* by its time limit; logs in ") as caught:
        launch(["sleep", "1000"], devices=1, timeout=0.5, check=True)
    assert caught.value.exit_code == 124


def test_lines_go_where_stdout_leads_now(launch):
    with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.redirect_stderr(io.StringIO()) as told:
        result = launch(["printf", r"caf\303\251 \377\n"], devices=1)
    assert shown.getvalue() == "café \ufffd\n"
    assert str(result.run_dir.name) in told.getvalue()


@pytest.mark.parametrize("closed", ["", ">&-", "<&- >&- 2>&-"])
def test_a_run_goes_on_whatever_its_caller_has_closed(tmp_path, closed):
    """Also with a stdout that has lost its reader; the exit code is known where SIGCHLD is ignored, too."""
    launching = "launcher.launch(['sh', '-c', 'echo shown; exit 5'], devices=1).exit_code"
    code = f"import signal, sys, launcher; signal.signal(signal.SIGCHLD, signal.SIG_IGN); sys.exit({launching})"
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as stdout:
        arguments = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, code]
        done = subprocess.run(arguments, cwd=tmp_path, check=False, stdout=stdout, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 5
    assert "Error" not in done.stderr


def test_console_may_be_one_rank(launch, capsys):
    launch(["sh", "-c", "echo rank $RANK"], devices=2, console=1)
    assert capsys.readouterr().out == "rank 1\n"


def test_a_run_goes_on_where_what_stands_for_stdout_takes_nothing(launch):
    shown = io.StringIO()
    shown.close()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(None):
        assert launch(["echo", "shown"], devices=1).exit_code == 0


@pytest.mark.parametrize(("arguments", "options", "kind"), [
    (["true"], {"devices": 1}, UsageError), ([["true"]], {"devices": "1"}, UsageError),
    ([["true"]], {"devices": 0}, UsageError),
    ([["true"]], {"devices": 1, "bind": "tightly"}, UsageError), ([["true"]], {"devices": 1, "console": [0, 1]}, UsageError),
    *(([["true"]], {"devices": 1, "console": console}, UsageError) for console in (1, None, ["all"], True)),
    ([["true"]], {"rank_table": "missing.json"}, UnreadableError),
    ([["true"]], {"devices": 3, "mp": 2}, RefusedLayoutError),
])  # fmt: skip
def test_what_does_not_fit_is_an_error_of_this_process(launch, tmp_path, arguments, options, kind):
    with pytest.raises(kind) as caught:
        launch(*arguments, **options)
    assert type(caught.value) is kind
    assert caught.value.exit_code == kind.exit_code
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("option", [
    {"command": [b"true"]}, {"settings": "train.steps=1"}, {"preload": "torch"}, {"forward_signals": "USR1"},
    {"engine_options": "--exclusive"}, {"env": {"LEVEL": None}}, {"env": {"LEVEL=1": "2"}},
])  # fmt: skip
def test_a_value_that_is_no_text_or_no_list_of_texts_is_refused(launch, option):
    with pytest.raises(UsageError) as caught:
        launch(**{"command": ["true"], "devices": 1, **option})
    assert f"write {next(iter(option))}=" in caught.value.hint


SLEEPS = "launcher.launch(['sh', '-c', 'echo $$ > pid; exec sleep 1000'], devices=1, runs_dir='runs', grace=5)"


@pytest.fixture
def sleeping(tmp_path, wait_until):
    def start(code):
        process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        pid = tmp_path / "pid"
        return process, int(wait_until(lambda: pid.exists() and pid.read_text(), "the pid of a rank"))

    return start


def test_an_interrupt_ends_the_run_and_is_raised(sleeping):
    process, rank = sleeping(f"import launcher\ntry: {SLEEPS}\nexcept KeyboardInterrupt: print('interrupted')")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert not psutil.pid_exists(rank)


def test_the_run_ends_with_the_program_that_started_it(sleeping, tmp_path, wait_until):
    process, rank = sleeping(f"import launcher; {SLEEPS}")
    process.kill()
    process.communicate()
    wait_until(lambda: not psutil.pid_exists(rank), "the end of the rank")
    wait_until(lambda: list(tmp_path.glob("runs/2*/report.json")), "the end of the run")


def test_the_endpoint_is_cheap_until_it_is_used():
    code = "import sys, launcher; print([name for name in sys.modules if name.startswith('launcher.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    with pytest.raises(AttributeError):
        _ = launcher.no_such_thing
