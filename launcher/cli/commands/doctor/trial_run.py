"""The run that measures links for `tlaunch doctor`: a normal `tlaunch run` without output, in a separate directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from launcher.cli.launch.start import run
from launcher.cli.main import exit_after
from launcher.cli.run_options import BRING_ALL, RunOptions
from launcher.core.codec import decode, encode
from launcher.core.errors import exit_code_of
from launcher.core.frozen import frozen
from launcher.core.records import Server
from launcher.core.resources import module_argv
from launcher.core.run_dir import LATEST, RunDir
from launcher.core.verdict import Confidence
from launcher.doctor.probe_handler import forget
from launcher.runs.status import read_report
from launcher.supervise.spawn import signal_of_parents_end

OWN_DIRECTORY = "tlaunch-doctor-"  # prefix of the doctor's temporary directories


@frozen
class Remains:
    runs_dir: Path  # created by the measurement's runs
    parent: bool  # True if its parent was created, too
    directory: Path  # of the doctor's files

    def remove(self) -> None:
        forget(self.runs_dir, parent=self.parent)
        if self.directory.name.startswith(OWN_DIRECTORY):
            shutil.rmtree(self.directory, ignore_errors=True)


def guarded(options: RunOptions, remains: Remains) -> list[str]:
    """Return the command of a guard process, which executes the run and exits when the doctor exits.

    If the doctor was killed, the guard removes the temporary files of the run and of the doctor.
    """
    setup = [str(os.getpid()), json.dumps(encode(remains)), json.dumps(encode(options))]
    return [*module_argv("launcher.cli.commands.doctor.trial_run", *setup)]


def _guard(doctor: str, remains: str, options: str) -> NoReturn:
    doctor_pid = int(doctor)
    signal.signal(signal.SIGTERM, _end)  # until the run replaces the handler
    try:
        signal_of_parents_end(signal.SIGTERM)
        if os.getppid() != doctor_pid:  # it was killed before this process could request a signal
            _end(signal.SIGTERM, None)
        exit_after(lambda: run(decode(RunOptions, json.loads(options))).exit_code)
    finally:
        if os.getppid() != doctor_pid:
            decode(Remains, json.loads(remains)).remove()


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(exit_code_of(-number))


LINKS = "launcher.trainer.links"
SECONDS = 10
JOIN_S = 60.0
GRACE_S = 2.0
STARTS_S = 120.0  # to import torch from a slow file system
HANGS_S = 6.0 * SECONDS  # without output or computation of ranks
LAST_S = 5 * GRACE_S  # for a failing run to report the reason
ENDED = 124
KEPT = "tlaunch-links-"  # prefix of the temporary directory for the logs of a failed run
LAST_BYTES = 64 << 10


def measuring(options: Mapping[str, Any]) -> RunOptions:
    """Return the options of a run that measures the links between the checked servers."""
    by_engine = options["engine"] in BRING_ALL
    own = {
        "mpi_ranks": False if by_engine else None,  # avoids a note about MPI ranks
        "name": "links",
        "command": module_argv(LINKS, "--seconds", str(SECONDS)),
    }
    return RunOptions(**{**options, **own})


def trial_options(options: Mapping[str, Any], runs_dir: Path, coordinator_port: int) -> dict[str, Any]:
    """Return the doctor's options with the runs directory, port and time limits of a link measurement."""
    by_engine = options["engine"] in BRING_ALL  # these engines refuse options for servers started by hand
    by_hand = {"coordinator_port": coordinator_port, "server": options.get("server")}
    own = {"runs_dir": runs_dir, "join_timeout": JOIN_S, "grace": GRACE_S, "hang_timeout": HANGS_S, "console": "none"}
    return {**options, **own, **(dict.fromkeys(by_hand) if by_engine else by_hand)}


class TrialRun:
    """A child process that measures links, or runs one server's part of the measurement."""

    def __init__(self, options: Mapping[str, Any], remains: Remains) -> None:
        # Without a name, so that nothing remains if the doctor is killed.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        self._process = subprocess.Popen(
            guarded(measuring(options), remains),
            stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output,
        )  # fmt: skip

    def attend(self, meanwhile: Callable[[float], None], is_in_vain: Callable[[], bool]) -> int:
        """Wait for the run to end and return its exit code. Return `ENDED` if the run had to be killed.

        While waiting, `meanwhile(until)` is called repeatedly and may block until that time. Once `is_in_vain()` is
        true, the run is killed after `LAST_S` seconds.
        """
        deadline = time.monotonic() + 3 * SECONDS + JOIN_S + STARTS_S
        was_in_vain = False
        try:
            while self._process.poll() is None and time.monotonic() < deadline:
                meanwhile(time.monotonic() + 0.1)
                if not was_in_vain and is_in_vain():
                    was_in_vain, deadline = True, min(deadline, time.monotonic() + LAST_S)
            return ENDED if self._process.poll() is None else exit_code_of(self._process.returncode)
        finally:
            self.close()

    def why(self) -> str:
        """Return the output line with the error message. If no line has one, return the last line."""
        with suppress(OSError):
            begin = max(0, os.fstat(self._output.fileno()).st_size - LAST_BYTES)
            output = os.pread(self._output.fileno(), LAST_BYTES, begin).decode(errors="replace").splitlines()
            lines = [line.strip() for line in output if line.strip()]
            return next((line for line in lines if line.startswith(("error:", "rank "))), lines[-1] if lines else "")
        return ""

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Stop the run if it is active, and block until it has ended. Idempotent and thread-safe."""
        for number, patience_s in ((signal.SIGTERM, 5 * GRACE_S), (signal.SIGKILL, GRACE_S)):
            if self._process.poll() is None:
                self._process.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(patience_s)


def blamed_server(run_dir: Path, servers: Sequence[Server]) -> int | None:
    """Return the index of the server that the run's verdict blames, or None if the verdict is uncertain."""
    report = read_report(RunDir(run_dir))
    verdict = None if report is None else report.verdict
    if verdict is None or verdict.confidence is Confidence.UNSURE:
        return None
    for index, server in enumerate(servers):
        if server.server_id == verdict.server or verdict.culprit in {one.global_rank for one in server.devices}:
            return index
    return None


def kept_run(run_dir: Path) -> Path | None:
    """Copy the run's local files to a new directory and return its path, or None if they cannot be copied."""
    if not (run_dir / "run.json").is_file():
        return None
    of_the_run = shutil.ignore_patterns(RunDir(run_dir).endpoint.name)  # of a coordinator that no longer runs
    with suppress(OSError):
        directory = Path(tempfile.mkdtemp(prefix=KEPT))
        try:
            return shutil.copytree(run_dir, directory / run_dir.name, symlinks=True, ignore=of_the_run)
        except OSError:  # a full disk, or another server's doctor has removed the run
            shutil.rmtree(directory, ignore_errors=True)
    return None


def with_kept_path(why: str, run_dir: Path, kept: Path | None) -> str:
    """Replace the path of the removed run directory in a message with the path of its copy."""
    for name in (str(run_dir), os.path.relpath(run_dir), str(run_dir.parent / LATEST)):
        why = why if kept is None else why.replace(name, str(kept))
    return why


class OwnPart:
    """Runs one server's part of link measurements. Used if the doctor was started by hand on each server."""

    def __init__(self, options: Mapping[str, Any], directory: Path) -> None:
        self._options = options
        self._directory = directory
        self._remains: Remains | None = None
        self._trial: TrialRun | None = None

    def answer(self, message: Mapping[str, Any], is_over: Callable[[], bool]) -> Mapping[str, Any] | None:
        """Run the measurement that `message` requests and return its result. For other messages, return None.

        Blocks until the run ends. `is_over` returns True once the next message has arrived.
        """
        if message.get("do") != "measure":
            return None
        runs_dir = Path(message["runs_dir"])
        if self._remains is None:  # the first run creates the directory
            self._remains = Remains(runs_dir, not os.path.isdir(runs_dir.parent), self._directory)  # noqa: PTH112 - Path raises
        options = trial_options(self._options, runs_dir, int(message["coordinator_port"]))
        self._trial = TrialRun(options, self._remains)
        exit_code = self._trial.attend(lambda until: time.sleep(max(0.0, until - time.monotonic())), is_over)
        if exit_code == 0:
            return {"exit_code": exit_code}
        ended = f"its part of the link measurement ended with exit code {exit_code}"
        return {"trouble": f"{ended}: {self._trial.why()}"}

    def close(self) -> None:
        """Stop the active run. Call this in the main thread before it exits."""
        if self._trial is not None and self._remains is not None and self._trial.is_running:
            self._trial.close()
            self._remains.remove()


def kept_table(options: Mapping[str, Any], text: str | None, directory: Path) -> dict[str, Any]:
    """Copy the rank table, because a pipe can be read only once. Return the options with the copy's path."""
    if options["rank_table"] is None or text is None:
        return dict(options)
    copy = directory / f"rank_table{Path(options['rank_table']).suffix}"
    copy.write_bytes(text.encode())
    return {**options, "rank_table": copy}


if __name__ == "__main__":
    _guard(*sys.argv[1:])
