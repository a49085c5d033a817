"""`tlaunch.launch` with a Python function: every rank calls it, and the caller gets what it returns or raises."""

import dataclasses
import importlib.util
import inspect
import os
import pty
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

import tlaunch
from launcher.cli.launch.launch_result import FunctionResult
from launcher.cli.launch_process import _checked
from launcher.cli.run_options import RunOptions
from launcher.core.errors import UnreadableError, UsageError
from launcher.preload.call_function import open_own
from tests.conftest import file_size_limit

from .conftest import read_until

ROOT = Path(__file__).parents[2]


class RankError(Exception):
    """An exception with state, as pickle handles it."""

    def __init__(self, rank):
        super().__init__(f"rank {rank} has no data")
        self.rank = rank


class SealedError(Exception):
    """An exception that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("sealed")


class PickyError(Exception):
    """An exception that cannot be unpickled."""

    def __init__(self, *, code):
        super().__init__(f"code {code}")


@pytest.fixture(name="launch")
def _launch(tmp_path, monkeypatch):
    monkeypatch.delenv("TLAUNCH_RUNS_DIR", raising=False)
    return lambda *arguments, **options: tlaunch.launch(*arguments, **{"runs_dir": tmp_path / "runs", **options})


def rank():
    return int(os.environ["RANK"])


def scaled(factor, *, offset=0):
    print("rank", rank())
    return RankError(factor * rank() + offset)


def test_the_values_are_those_of_the_ranks(launch, capsys):
    result = launch(scaled, args=(10,), kwargs={"offset": 1}, devices=3, console="all")
    assert [value.rank for value in result.return_values] == [1, 11, 21]
    assert isinstance(result.return_values[0], RankError)
    assert (result.exit_code, result.verdict) == (0, None)
    assert result.run_dir.name.endswith("-scaled")
    assert sorted(capsys.readouterr().out.split("\n")) == ["", *(f"[{rank}] rank {rank}" for rank in range(3))]


def test_the_exception_is_that_of_the_culprit(launch, request):
    def fail():
        if rank() == 1:
            raise RankError(1)
        time.sleep(1000)

    with pytest.raises(RankError, match="rank 1 has no data") as caught:
        launch(fail, devices=2, grace=1)
    assert caught.value.rank == 1
    failed = caught.value.__cause__
    assert isinstance(failed, tlaunch.RunFailedError)
    assert (failed.exit_code, failed.result.verdict.culprit) == (1, 1)
    assert f"{Path(__file__).name}:" in str(failed)
    assert "call_function" not in str(failed)
    assert "raise RankError(1)" in (failed.result.run_dir / "device1" / "train.log").read_text()


def seal():
    raise SealedError("closed")


def pick():
    raise PickyError(code=3)


def generate():
    return (value for value in ())


@pytest.mark.parametrize(("ends", "kind", "exit_code", "says"), [
    (seal, tlaunch.RunFailedError, 1, "SealedError: closed"),
    (pick, tlaunch.RunFailedError, 1, "PickyError: code 3"),
    (lambda: sys.exit(7), tlaunch.RunFailedError, 7, "exit code 7"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), tlaunch.RunFailedError, 137, "SIGKILL"),
    (lambda: os._exit(0), tlaunch.RunFailedError, 1, "rank 0 exited with code 0 before"),
    (lambda: signal.raise_signal(signal.SIGINT), tlaunch.RunFailedError, 130, "KeyboardInterrupt"),
    (generate, TypeError, 1, r"generate\(\) returned cannot be pickled: cannot pickle 'generator' object"),
    (lambda: {}["missing"], KeyError, 1, "missing"),
])  # fmt: skip
def test_every_other_end_of_a_rank_has_its_error(launch, ends, kind, exit_code, says):
    with pytest.raises(kind, match=says) as caught:
        launch(ends)
    assert type(caught.value) is kind
    failed = caught.value if kind is tlaunch.RunFailedError else caught.value.__cause__
    assert failed.exit_code == exit_code


def test_a_result_is_shown_on_one_short_line(launch, tmp_path):
    def fail():
        raise ValueError("no such word " * 1000)

    done = FunctionResult(0, tmp_path, None, (), ("no such word " * 1000, None))
    assert repr(done) == f"FunctionResult(exit_code=0, run_dir='{tmp_path}', 2 return values)"
    result = launch(fail, check=False)
    begin, reason = repr(result).split(", reason=")
    assert begin == f"FunctionResult(exit_code=1, run_dir='{result.run_dir}', culprit=0"
    assert reason.startswith("'rank 0: ValueError: no such word no such word")
    assert len(reason) < 210
    assert "\n" not in reason


def test_a_hung_rank_is_named(launch):
    with pytest.raises(tlaunch.RunFailedError) as caught:
        launch(lambda: time.sleep(1000), hang_timeout=1, grace=1)
    assert caught.value.exit_code == 124


def test_without_check_a_failed_run_has_no_values(launch):
    result = launch(seal, check=False)
    assert (result.exit_code, result.return_values, result.verdict.culprit) == (1, (), 0)


def test_with_check_a_failed_command_raises(launch):
    with pytest.raises(tlaunch.RunFailedError, match="exit code 5") as caught:
        launch(["sh", "-c", "exit 5"], check=True)
    assert (caught.value.exit_code, caught.value.result.exit_code) == (5, 5)


def test_the_values_are_those_of_the_last_attempt(launch):
    def once():
        attempt = int(os.environ["TLAUNCH_ATTEMPT"])
        if attempt == 0 and rank() == 1:
            raise RankError(1)
        return attempt

    result = launch(once, devices=2, max_restarts=1)
    assert result.return_values == (1, 1)
    assert len(result.attempts) == 2


def test_a_function_of_a_module_that_ranks_cannot_import_is_sent_with_its_code(launch, tmp_path, monkeypatch):
    file = tmp_path / "far" / "notes.py"
    file.parent.mkdir()
    file.write_text("class Note:\n    pass\n\ndef note():\n    return Note()\n")
    spec = importlib.util.spec_from_file_location("notes", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "notes", module)
    spec.loader.exec_module(module)
    assert isinstance(launch(module.note).return_values[0], module.Note)


def test_the_files_are_private_and_removed(launch):
    def look():
        directory = Path(sys.orig_argv[-1])
        return directory, [stat.S_IMODE(directory.stat().st_mode), *(path.name for path in directory.iterdir())]

    ((directory, found),) = launch(look).return_values
    assert found == [0o700, "function"]
    assert not directory.exists()


def test_files_of_other_users_are_refused(tmp_path, monkeypatch):
    (tmp_path / "function").write_bytes(b"")
    (tmp_path / "link").symlink_to("function")
    open_own(str(tmp_path / "function")).close()
    with pytest.raises(OSError, match="symbolic"):
        open_own(str(tmp_path / "link"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError):
        open_own(str(tmp_path / "function"))


@pytest.mark.parametrize(("arguments", "options", "says"), [
    ([scaled], {}, "missing a required argument: 'factor'"),
    ([scaled], {"args": (threading.Lock(),)}, "cannot be pickled"),
    ([generate], {"rank_table": ROOT / "rank_tables" / "rank_table_16pcs.json"}, "one machine only"),
    ([generate], {"devices": 2, "engine": "mpi"}, "one machine only"),
    ([["true"]], {"args": (1,)}, "only for functions"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_before_the_start(launch, tmp_path, arguments, options, says):
    with pytest.raises(UsageError, match=says) as caught:
        launch(*arguments, **options)
    assert caught.value.hint
    assert not (tmp_path / "runs").exists()


def test_arguments_that_do_not_fit_on_the_disk_are_refused(launch):
    with file_size_limit(1000), pytest.raises(UnreadableError, match="File too large"):
        launch(scaled, args=(bytes(10_000),))


def test_each_option_of_a_run_is_a_keyword():
    keywords = inspect.signature(tlaunch.launch).parameters.keys() - {"args", "kwargs", "check", "wait"}
    of_the_command = {"quiet", "verbose", "detach", "dry_run", "json", "stdin"}
    assert keywords == {field.name for field in dataclasses.fields(RunOptions)} - of_the_command


def test_an_unknown_keyword_is_refused(launch):
    with pytest.raises(TypeError, match="'device'"):
        launch(generate, device=2)
    with pytest.raises(TypeError, match="'detach'"):
        launch(["true"], detach=True)


@pytest.mark.parametrize(("keyword", "ours"), [
    ("nproc_per_node", "devices"), ("num_processes", "devices"), ("device", "devices"), ("log_dir", "runs_dir"),
    ("lr", r"settings=\['train.learning_rate=VALUE'\]"), ("src", "source"),
])  # fmt: skip
def test_a_keyword_of_another_tool_is_answered_with_the_keyword_that_is_meant(launch, keyword, ours):
    with pytest.raises(TypeError, match=f"; use (?:.* or )?{ours}(?: or .*)?$"):
        launch(scaled, **{keyword: 2})


def test_arguments_in_the_wrong_place_or_of_a_wrong_type_are_told(launch):
    with pytest.raises(TypeError, match=r"args=\(1, 2\)"):
        launch(scaled, 1, 2)
    for wrong in (1, "ab"):
        with pytest.raises(UsageError, match=r"^args: ") as error:
            launch(scaled, args=wrong)
        assert error.value.hint == f"write args=({wrong!r},)"
    with pytest.raises(UsageError, match=r"^command: 3 is not a list") as error:
        launch(3)
    assert "not launch(train())" in error.value.hint


@pytest.mark.parametrize(
    ("name", "value"), [("devices", "2"), ("name", 3), ("elastic", 1), ("bind", 3), ("grace", "1")]
)
def test_a_value_of_a_wrong_type_is_told_with_its_option(name, value):
    with pytest.raises(UsageError, match=f"^{name}: {value!r} is not "):
        _checked({name: value})


def test_without_cloudpickle_a_hint_names_it(launch, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(UsageError, match="cloudpickle"):
        launch(generate)


def test_a_module_that_launches_when_it_is_imported_does_not_start_more_ranks(tmp_path):
    (tmp_path / "unguarded.py").write_text(
        "import tlaunch\ndef one(): return 1\ntlaunch.launch(one, runs_dir='runs')\n"
    )
    command = [sys.executable, "-c", "import unguarded"]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert "calls tlaunch.launch at its top level" in done.stderr
    assert len(list(tmp_path.glob("runs/2*"))) == 1


def test_a_run_of_a_function_cannot_be_repeated_by_its_command(launch, tmp_path):
    result = launch(rank)
    command = [sys.executable, "-m", "launcher", "rerun", str(result.run_dir)]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert "called the Python function rank" in done.stderr


REPL = """
import os, signal, threading, time
import tlaunch

class Nothing(Exception): pass

def work(kind):
    print("rank", os.environ["RANK"], flush=True)
    if kind == "fail":
        raise Nothing("no more")
    if kind == "sleep":
        time.sleep(1000)
    return Nothing(os.environ["RANK"])

values = tlaunch.launch(work, args=("return",), devices=2).return_values
print([isinstance(value, Nothing) for value in values])

try: tlaunch.launch(work, args=("fail",), console="none")
except Nothing as error: print("raised", error, error.__cause__.result.verdict.culprit)

def interrupt():
    while not any("rank" in run.read_text() for run in __import__("pathlib").Path("runs").glob("*-work*/device0/train.log")
                  if not (run.parents[1] / "report.json").exists()):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try: tlaunch.launch(work, args=("sleep",), console="none", grace=5)
except KeyboardInterrupt: print("interrupted")

"""


@pytest.mark.parametrize("option", ["-", "-i"])
def test_functions_that_were_typed_run_too(tmp_path, option):
    """Results, prints, exceptions and Ctrl-C, with a script on stdin and in a REPL."""
    environment = {**os.environ, "TLAUNCH_RUNS_DIR": "runs"}
    done = subprocess.run(
        [sys.executable, "-q", option], cwd=tmp_path, env=environment, input=REPL, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    shown = [line for line in done.stdout.splitlines() if line]
    assert shown == ["rank 0", "[True, True]", "raised no more 0", "interrupted"], done.stderr


DDP = """
import tlaunch

def train(learning_rate):
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    inputs = torch.full((4, 2), float(dist.get_rank()))
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
    model(inputs).sum().backward()
    optimizer.step()
    dist.destroy_process_group()
    return [parameter.detach() for parameter in model.parameters()]

values = tlaunch.launch(train, args=(0.1,), devices=4, runs_dir="runs", console="none").return_values
print(len(values), all((own == first).all() for rank in values for own, first in zip(rank, values[0])))

"""


@pytest.mark.distributed
def test_ranks_train_a_typed_model_together(tmp_path):
    done = subprocess.run(
        [sys.executable, "-i", "-q"], cwd=tmp_path, input=DDP, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["4 True"], done.stderr


# --- wait=False ---


def test_a_run_in_the_background_is_watched_and_waited_for(launch, tmp_path, wait_until):
    def until_file(path):
        print("ready")
        while not Path(path).exists():
            time.sleep(0.01)
        return rank()

    run = launch(until_file, args=(str(tmp_path / "go"),), devices=2, wait=False)
    wait_until(lambda: run.logs(1) == "ready\n", "the output of rank 1")
    assert run.status() == "running"
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.01)
    with pytest.raises(UsageError, match="2 ranks"):
        run.logs(2)
    (tmp_path / "go").touch()
    result = run.wait()
    assert (result.return_values, result.run_dir) == ((0, 1), run.run_dir)
    assert run.status() == "finished"
    assert run.wait() is result


def test_a_run_in_the_background_is_stopped(launch):
    run = launch(["sleep", "1000"], wait=False, check=True)
    run.stop()
    assert run.status() == "stopped"
    with pytest.raises(tlaunch.RunFailedError) as caught:
        run.wait()
    assert caught.value.exit_code == 143
    run.stop()


def test_errors_before_the_run_begins_are_raised_at_once(launch):
    with pytest.raises(UsageError):
        launch(rank, devices=0, wait=False)


def test_a_run_outlives_the_thread_that_started_it(launch):
    runs = []
    thread = threading.Thread(target=lambda: runs.append(launch(["sleep", "0.3"], wait=False)))
    thread.start()
    thread.join()
    assert runs[0].wait().exit_code == 0


def test_a_run_in_the_background_ends_with_the_program(tmp_path, wait_until):
    code = "import tlaunch; print(tlaunch.launch(['sleep', '1000'], wait=False, runs_dir='runs').run_dir)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    run_dir = Path(done.stdout.splitlines()[0])
    wait_until((run_dir / "report.json").exists, "the end of the run")
    wait_until(lambda: str(tmp_path) not in [each.info["cwd"] for each in psutil.process_iter(["cwd"])], "their ends")


def test_no_status_line_is_drawn_on_the_terminal_in_the_background(tmp_path):
    code = "import tlaunch; tlaunch.launch(['sleep', '2'], wait=False, runs_dir='runs').wait()"
    leader, follower = pty.openpty()
    with os.fdopen(follower, "wb") as terminal:
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=terminal, stderr=terminal)
    shown = read_until(leader, None)
    os.close(leader)
    assert (b"started" in shown, b"succeeded" in shown, b"\x1b" in shown) == (True, True, False)
