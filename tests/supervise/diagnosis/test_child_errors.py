"""The errors of processes that a rank has started, which its own exception only wraps."""

import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from launcher.logs.tracebacks import find_traceback, tracebacks_above
from launcher.preload import frames
from launcher.supervise.diagnosis.child_errors import child_error

CHILD = 'Traceback (most recent call last):\n  File "/a/real.py", line 2, in step\n    x()\n'
DEVICE = f"{CHILD}RuntimeError: device-side assert triggered\n"
AT_ONCE = re.sub(".*\n", r"\g<0>\g<0>", CHILD).replace("    x()\n" * 2, "        x()x()\n\n")  # from two processes
COMMAND = "subprocess.CalledProcessError", "Command '['python', 'real.py']' returned non-zero exit status {}."
OF_RANK = 'Traceback (most recent call last):\n  File "/a/train.py", line 7, in main\n    run()\n'


def table(*failures):
    """What torchrun raises: the first failure is the root cause."""
    rows = [
        f"[{number}]:\n  time      : 2026-11-28_19:29:54\n  host      : localhost\n  rank      : {number} (local_rank: {number})\n"
        f"  exitcode  : {status} (pid: {100 + number}) \n  error_file: <N/A>\n  traceback : {words}\n"
        for number, (status, words) in enumerate(failures)
    ]
    rule, thin = "=" * 60 + "\n", "-" * 60 + "\n"
    others = "".join(rows[1:]) or "  <NO_OTHER_FAILURES>\n"
    return (
        f"\n{rule}real.py FAILED\n{thin}Failures:\n{others}{thin}Root Cause (first observed failure):\n{rows[0]}{rule}"
    )


NOTHING_RECORDED = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
RECORDED = 'Traceback (most recent call last):\n    File "/a/real.py", line 4, in main\n      x()\n  ValueError: no shard 7\n  '


def failed(name, message, expected, above="", *, sure=True, traceback=""):
    return pytest.param(
        name, message, above, traceback, expected, sure, id=" ".join((name, expected[0] or "none", str(sure)))
    )


CASES = [
    failed("KeyError", f"Caught KeyError in DataLoader worker process 0.\nOriginal {DEVICE}",
           ("RuntimeError: device-side assert triggered", "real.py:2 in step")),
    failed("RuntimeError", f"Caught RuntimeError in replica 1 on device 1.\nOriginal {DEVICE}",
           ("RuntimeError: device-side assert triggered", "real.py:2 in step")),
    failed("torch.multiprocessing.spawn.ProcessRaisedException",
           f"\n\n-- Process 1 terminated with the following error:\n{DEVICE}",
           ("RuntimeError: device-side assert triggered", "real.py:2 in step")),
    failed("app.WorkerError", f"reader 3 of shard 7 failed:\n{DEVICE}",
           ("app.WorkerError: reader 3 of shard 7 failed: RuntimeError: device-side assert triggered", "real.py:2 in step")),
    failed(COMMAND[0], COMMAND[1].format(1), ("RuntimeError: device-side assert triggered", "real.py:2 in step"), DEVICE),
    failed(COMMAND[0], COMMAND[1].format(1), ("RuntimeError: device-side assert triggered", "real.py:2 in step"),
           f"{DEVICE}step 2\nstep 3\n", sure=False),
    failed(COMMAND[0], COMMAND[1].format(3), ("RuntimeError: device-side assert triggered", "real.py:2 in step"),
           DEVICE, sure=False),
    failed(COMMAND[0], COMMAND[1].format(1), (None, None), DEVICE + "step\n" * 30),
    failed(COMMAND[0], "Command 'x' died with <Signals.SIGKILL: 9>.", (None, None), DEVICE),
    failed(COMMAND[0], COMMAND[1].format(1), ("RuntimeError: device-side assert triggered", "real.py:2 in step"),
           traceback=f"{OF_RANK}{frames.CAPTURED}\nstep 1\n{DEVICE}"),
    failed(COMMAND[0], "Command '['ls']' returned non-zero exit status 2.",
           ("CalledProcessError: Command '['ls']' returned non-zero exit status 2.: ls: no such file", None),
           traceback=f"{OF_RANK}{frames.CAPTURED}\nls: no such file\n"),
    failed("a.ChildFailedError", table((1, NOTHING_RECORDED)),
           ("RuntimeError: device-side assert triggered", "real.py:2 in step"), f"{DEVICE}E1128 failed (exitcode: 1)\n"),
    failed("a.ChildFailedError", table((1, NOTHING_RECORDED), (1, NOTHING_RECORDED)),
           ("RuntimeError: device-side assert triggered", "real.py:2 in step"),
           f"{DEVICE}{CHILD}RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:34185\nE1128\n"),
    failed("a.ChildFailedError", table((1, NOTHING_RECORDED)), ("AssertionError: ", "real.py:2 in step"),
           f"{CHILD}AssertionError\n{CHILD}RuntimeError: Connection closed by peer [127.0.0.1]:34185\nE1128\n"),
    *(failed("a.ChildFailedError", table((1, NOTHING_RECORDED)), expected, f"{AT_ONCE}{exceptions}\nE1128 failed\n")
      for exceptions, expected in (
          ("OSErrorOSError: : no: 7no: 7\n", ("OSError: no: 7", "real.py:2 in step")),
          ("OSError: OSErrorno: 7: \nno: 7", ("OSError: no: 7", "real.py:2 in step")),
          ("OSError: no: 7\n    x()\nOSError: no: 7", ("OSError: no: 7", "real.py:2 in step")),
          ("OSErrorKeyError: : no: 7no: 7\n", ("ChildFailedError: a process of torchrun ended with exit code 1", "")),
      )),
    failed("a.ChildFailedError", table((1, RECORDED), (-15, NOTHING_RECORDED)), ("ValueError: no shard 7", "real.py:4 in main")),
    failed("a.ChildFailedError", table((-9, "Signal 9 (SIGKILL) received by PID 100")),
           ("ChildFailedError: Signal 9 (SIGKILL) received by PID 100", ""), DEVICE),
    failed("a.ChildFailedError", table((3, NOTHING_RECORDED)), ("RuntimeError: device-side assert triggered", "real.py:2 in step"),
           DEVICE, sure=False),
    failed("a.ChildFailedError", table((3, NOTHING_RECORDED)),
           ("ChildFailedError: a process of torchrun ended with exit code 3", "")),
    failed("ValueError", "no shard 7", (None, None), DEVICE),
]  # fmt: skip


@pytest.mark.parametrize(("name", "message", "above", "traceback", "expected", "sure"), CASES)
def test_the_error_of_the_process(name, message, above, traceback, expected, sure):  # noqa: PLR0917
    log = f"step 1\n{above}{OF_RANK}{name}: {message}\n"
    error = child_error(name, message, traceback or OF_RANK, tracebacks_above(log.encode()))
    if expected[0] is None:
        assert error is None
        return
    assert (f"{error.found.type}: {error.found.message}", error.found.where, error.is_sure) == (*expected, sure)


def test_a_table_of_torchrun_is_part_of_its_message():
    found = find_traceback(f"{OF_RANK}a.ChildFailedError: {table((1, RECORDED), (-15, NOTHING_RECORDED))}")
    assert (found.type, found.lines_after) == ("a.ChildFailedError", 0)
    assert "Root Cause" in found.message


def raises(number):
    raise ValueError(f"no shard {number}")


def of_executor():
    with ProcessPoolExecutor(1, get_context("fork")) as pool:
        pool.submit(raises, 7).result()


def of_pool():
    with get_context("fork").Pool(1) as pool:
        pool.apply(raises, (7,))


@pytest.mark.parametrize("call", [of_executor, of_pool])
def test_the_line_of_a_pool_s_worker_is_named(call):
    with pytest.raises(ValueError, match="no shard 7") as caught:
        call()
    traceback = frames.text(caught.value, frames.places(caught.value.__traceback__))
    error = child_error("ValueError", "no shard 7", traceback)
    assert error.found.where == f"test_child_errors.py:{raises.__code__.co_firstlineno + 1} in raises"
    assert child_error("ValueError", "another", traceback) is None


def test_what_a_command_had_written_is_kept():
    with pytest.raises(subprocess.CalledProcessError) as caught:
        subprocess.run([sys.executable, "-c", "raise ValueError('no shard 7')"], check=True, capture_output=True)
    message, traceback = str(caught.value), frames.text(caught.value, frames.places(caught.value.__traceback__))
    error = child_error("subprocess.CalledProcessError", message, traceback)
    assert (error.found.type, error.found.message, error.is_sure) == ("ValueError", "no shard 7", True)
