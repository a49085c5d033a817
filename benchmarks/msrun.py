"""Claim: a failed MindSpore program is reported with its rank and line, and stopped at once; msrun takes a minute.

    msrun.py --python PYTHON [CASE ...]

PYTHON must have MindSpore 2 and msrun. Four ranks on this machine run a reduction, then one of the cases. The table
has four columns: the total time if the ranks succeed, else the time from the failure until no process of the job is
left; the exit code; whether the launcher's output names the rank and the line; and the number of processes left.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from common.processes import BIN

PROGRAM = Path(__file__).parent / "programs" / "with_mindspore.py"
RANKS, VICTIM = 4, 2
LIMIT_S = 120.0  # for a launcher to end; then its case is over as it is
LEFT_AFTER_S = 20.0  # a process that outlives a killed launcher for so long is left
MARK = "TLAUNCH_BENCHMARK"
# What a rank does, and which process gets SIGKILL once all ranks have met.
CASES = {
    "all end well": ("ends", None),
    "a rank raises": ("raises", None),
    "kill -9 of a rank": ("stays", "rank"),
    "kill -9 of the launcher": ("stays", "launcher"),
    "a rank hangs": ("hangs", None),
    "kill -9 of the scheduler": ("stays", "scheduler"),
    "a rank fails once": ("raises-once", None),
}


@dataclass(frozen=True)
class Outcome:
    seconds: float | None  # None: it had not ended after LIMIT_S
    code: int | None
    names_rank: bool
    names_line: bool
    left: int


def command(tool: str, python: Path, case: str, what: str, directory: Path) -> list[str]:
    program = [str(PROGRAM), what, str(directory)]
    if tool == "msrun":
        count = str(RANKS)
        options = [
            "--worker_num",
            count,
            "--local_worker_num",
            count,
            "--join",
            "True",
            "--log_dir",
            str(directory / "logs"),
        ]
        return [str(python.parent / "msrun"), *options, *program]
    options = {"a rank hangs": ["--hang-timeout", "10s"], "a rank fails once": ["--max-restarts", "1"]}.get(case, [])
    run = [
        str(BIN / "tlaunch"),
        "run",
        "--devices",
        str(RANKS),
        "--console",
        "none",
        "--runs-dir",
        str(directory / "runs"),
    ]
    return [*run, *options, "--", str(python), *program]


def processes(mark: str) -> dict[int, str]:
    """The role of every living process that has the mark, by pid."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            variables = (path / "environ").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if f"{MARK}={mark}" in variables:
            roles = [each.partition("=")[2] for each in variables if each.startswith("MS_ROLE=")]
            found[int(path.name)] = roles[0] if roles else ""
    return found


def try_once(tool: str, python: Path, case: str) -> Outcome:
    what, victim = CASES[case]
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryFile() as output:
        directory = Path(name)
        environment = {**os.environ, MARK: mark, "GLOG_v": "3", "PATH": f"{python.parent}:{os.environ['PATH']}"}
        began = time.time()
        process = subprocess.Popen(
            command(tool, python, case, what, directory), stdout=output, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True, cwd=name,
        )  # fmt: skip
        try:
            failed = began if what == "ends" else wait_for_ranks(directory, process)
            if victim is not None:
                failed = kill(victim, process, directory, mark)
            seconds = wait_for_end(process, mark, failed, whole_s=LEFT_AFTER_S if victim == "launcher" else LIMIT_S)
            left = processes(mark)
            output.seek(0)
            said = output.read().decode(errors="replace")
        finally:
            for pid in processes(mark):
                os.kill(pid, signal.SIGKILL)
            process.wait()
    culprit = "MindSpore's scheduler: SIGKILL" if victim == "scheduler" else f"rank {VICTIM}: "
    named = culprit in said
    code = process.returncode if seconds is not None else None
    return Outcome(seconds, code, named, f"{PROGRAM.name}:" in said, len(left))


def wait_for_ranks(directory: Path, process: subprocess.Popen[bytes]) -> float:
    """When the rank that fails had met the others, in seconds since 1970."""
    deadline = time.monotonic() + LIMIT_S
    while not all((directory / str(rank)).exists() for rank in range(RANKS)):
        assert process.poll() is None, f"the launcher ended with {process.returncode}"
        assert time.monotonic() < deadline, "the ranks never met"
        time.sleep(0.02)
    return int((directory / str(VICTIM)).read_text().split()[0]) / 1e9


def kill(victim: str, launcher: subprocess.Popen[bytes], directory: Path, mark: str) -> float:
    pids = {
        "launcher": lambda: launcher.pid,
        "rank": lambda: int((directory / str(VICTIM)).read_text().split()[1]),
        "scheduler": lambda: next(pid for pid, role in processes(mark).items() if role == "MS_SCHED"),
    }
    os.kill(pids[victim](), signal.SIGKILL)
    return time.time()


def wait_for_end(process: subprocess.Popen[bytes], mark: str, since: float, *, whole_s: float) -> float | None:
    deadline = time.monotonic() + whole_s
    while process.poll() is None or processes(mark):
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)
    return time.time() - since


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", type=Path, default=os.environ.get("TLAUNCH_TEST_MINDSPORE_PYTHON"))
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE", help=", ".join(CASES))
    options = parser.parse_args()
    if options.python is None:
        print("no --python names a Python that has MindSpore: nothing is measured")
        return 0
    print(
        f"{'':<26}{'launcher':<10}{'ended after':>12}{'exit code':>11}  {'rank named':<12}{'line named':<12}{'left':>4}"
    )
    missed = []
    for case in options.cases or CASES:
        for tool in ("msrun", "tlaunch"):
            one = try_once(tool, options.python.absolute(), case)
            seconds = "not" if one.seconds is None else f"{one.seconds:.1f} s"
            names = ["yes" if each else "no" for each in (one.names_rank, one.names_line)]
            print(
                f"{case:<26}{tool:<10}{seconds:>12}{one.code!s:>11}  {names[0]:<12}{names[1]:<12}{one.left:>4}",
                flush=True,
            )
            if tool == "tlaunch" and (one.seconds is None or one.left):
                missed.append(case)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
