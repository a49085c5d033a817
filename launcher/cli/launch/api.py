"""`tlaunch.launch`: what `tlaunch run` does, for Python programs and notebooks.

The run has a launcher process of its own: it forks and handles signals, which neither a notebook's threads nor an event
loop would survive. This process sends it the options, shows what it prints, and reads what became of the run.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import reprlib
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from launcher.cli.run_options import (
    DEFAULT_JOIN_S,
    DEFAULT_LOST_S,
    EngineName,
    MindSporeWay,
    RunOptions,
)
from launcher.core import errors
from launcher.core.codec import encode
from launcher.core.frozen import frozen
from launcher.core.records import DEFAULT_GRACE_S, Console
from launcher.core.resources import at_home, module_argv, usual_runs_dir
from launcher.core.run_dir import RunDir
from launcher.core.run_report import Attempt
from launcher.core.verdict import Verdict
from launcher.engines.placement import Bind
from launcher.runs.status import look

CHILD = "launcher.cli.launch_process"
CHUNK_BYTES = 1 << 16


@frozen
class LaunchResult:
    """The end of a run."""

    exit_code: int  # as `tlaunch run` has it: 0 when all ranks ended well
    run_dir: Path  # with a log for each rank
    verdict: Verdict | None  # which rank failed first and why; None where none did
    attempts: tuple[Attempt, ...]  # in their order; more than one after restarts


def launch(
    command: Sequence[str] = (),
    *,
    rank_table: str | os.PathLike[str] | None = None,
    devices: int | None = None,
    chip: str | None = None,
    dp: int | None = None,
    mp: int = 1,
    pp: int = 1,
    micro_batches: int | None = None,
    allow_idle_devices: bool = False,
    elastic: bool = False,
    exclude: Sequence[str] = (),
    recipe: str | None = None,
    config: str | None = None,
    settings: Sequence[str] = (),
    data: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    save_strategy: bool = False,
    profile: bool = False,
    runs_dir: str | os.PathLike[str] | None = None,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    master_port: int | None = None,
    grace: float = DEFAULT_GRACE_S,
    max_restarts: int = 0,
    hang_timeout: float | None = None,
    preload: Sequence[str] | None = None,
    no_preload: bool = False,
    mindspore: MindSporeWay = "auto",
    forward_signals: Sequence[str] = ("USR1", "USR2"),
    bind: Bind = "auto",
    engine: EngineName | None = None,
    engine_options: Sequence[str] = (),
    mpi_ranks: bool | None = None,
    server: str | None = None,
    join_timeout: float = DEFAULT_JOIN_S,
    lost_after: float = DEFAULT_LOST_S,
    allow_different_program: bool = False,
    coordinator_port: int | None = None,
    console: Console = "rank0",
    progress_regex: str | None = None,
) -> LaunchResult:
    """Run what `tlaunch run` with the same options runs, and return what became of it. Block until it has ended.

    `command` is a list of arguments; without it the bundled Transformer is trained. Every keyword is the option of that
    name, explained by `tlaunch run --help`; `env` maps names to values, sizes are in bytes, times in seconds. The
    lines that `console` chooses go to `sys.stdout`, everything else to `sys.stderr`; what these do not take is dropped. In
    the main thread Ctrl-C (a notebook's interrupt) ends the run within `grace` seconds, a second one at once, and is raised
    when nothing of it is left. The run also ends when this process does. In an event loop:
    `await asyncio.to_thread(tlaunch.launch, ...)`, which only `tlaunch stop` ends early.

    A run whose ranks fail is a result, not an error:

        >>> result = tlaunch.launch(["python", "train.py", "--epochs", "3"], devices=4)  # doctest: +SKIP
        >>> if result.exit_code:  # doctest: +SKIP
        ...     print(result.verdict.reason, result.run_dir / "device0" / "train.log")

    Raises:
        TlaunchError: options, rank table, layout or program do not fit; nothing was started.
    """
    return _result(*_run_apart(_options(dict(locals()))))  # every parameter is a field of RunOptions


def _path(value: str | os.PathLike[str]) -> Path:
    return Path(at_home(os.fspath(value)))


def _options(given: dict[str, Any]) -> RunOptions:
    """Return the options that keywords of `launch` stand for, each as the command line has it.

    Raises:
        UsageError: one is of another kind.
    """
    preload = given["preload"]
    converted = {
        "command": _texts("command", given["command"], "['python', 'train.py']"),
        "rank_table": None if given["rank_table"] is None else _path(given["rank_table"]),
        "exclude": _texts("exclude", given["exclude"], "['10.0.0.2', '10.0.0.3/7']"),
        "settings": _texts("settings", given["settings"], "['train.steps=400']"),
        "data": None if given["data"] is None else _path(given["data"]),
        "config": given["config"] and at_home(given["config"]),
        "resume": None if given["resume"] is None else at_home(os.fspath(given["resume"])),
        "runs_dir": _path(given["runs_dir"]) if given["runs_dir"] else usual_runs_dir(),
        "env": _pairs(given["env"] or {}),
        "preload": None if preload is None else ",".join(_texts("preload", preload, "['torch']")),
        "forward_signals": ",".join(_texts("forward_signals", given["forward_signals"], "['USR1']")),
        "engine_options": _texts("engine_options", given["engine_options"], "['--exclusive']"),
    }
    return RunOptions(**{**given, **converted})


def _result(exit_code: int, answer: Mapping[str, Any]) -> LaunchResult:
    """Return what became of a run, from the exit code and the answer of the launcher's process.

    Raises:
        TlaunchError: as it was raised there.
    """
    if "error" in answer:
        reported = answer["error"]
        error: errors.TlaunchError = getattr(errors, reported["kind"])(reported["message"], hint=reported["hint"])
        error.exit_code, error.has_lines = reported["exit_code"], reported["has_lines"]
        raise error
    if "run_dir" not in answer:
        raise errors.TlaunchError(f"the launcher's process ended with exit code {exit_code}, and did not say why")
    state = look(RunDir(Path(answer["run_dir"])))
    return LaunchResult(answer["exit_code"], state.run_dir.root, state.verdict, state.attempts)


def _texts(name: str, given: Iterable[Any], example: str) -> tuple[str, ...]:
    """Return the texts and paths that a keyword was given, as texts.

    Raises:
        UsageError: it is one text, which would be cut into letters, or holds something else.
    """
    if callable(given):
        hint = "put the function into a script, which every rank runs: launch(['python', 'train.py'], ...)"
        raise errors.UsageError(f"{name} is a function, and ranks are processes of their own", hint=hint)
    if isinstance(given, str | bytes):
        raise errors.UsageError(f"{name} is one text, not a list of texts", hint=f"for instance {name}={example}")
    texts = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in given)
    for text in texts:
        if not isinstance(text, str):
            raise errors.UsageError(f"{name}: {reprlib.repr(text)} is no text", hint=f"for instance {name}={example}")
    return texts


def _pairs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return variables as `--env` takes them.

    Raises:
        UsageError: one has another name or value than the ranks would see.
    """
    hint = "for instance env={'NCCL_DEBUG': 'INFO'}"
    for name, value in env.items():
        if not isinstance(name, str) or "=" in name:  # what follows = may be a secret
            raise errors.UsageError("env: a variable's name is no text, or holds a =", hint=hint)
        if not isinstance(value, str):
            raise errors.UsageError(f"env: the value of {name} is no text", hint=hint)
    return tuple(f"{name}={value}" for name, value in env.items())


def _run_apart(options: RunOptions) -> tuple[int, Mapping[str, Any]]:
    """Run in a process of its own; return its exit code, and what it has written about the run or an error."""
    with (
        tempfile.TemporaryFile() as file,
        # Where this process's stdin, stdout or stderr is closed, the file has its descriptor, which a child cannot inherit.
        os.fdopen(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3), "rb") as answer,
        subprocess.Popen(
            module_argv(CHILD, str(os.getpid()), str(answer.fileno())),
            stdin=subprocess.PIPE,
            stdout=_output(sys.stdout, sys.__stdout__),
            stderr=_output(sys.stderr, sys.__stderr__),
            pass_fds=(answer.fileno(),),
            start_new_session=True,  # a terminal's Ctrl-C comes here, and is passed on once
        ) as process,
    ):
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError), process.stdin as stdin:
                stdin.write(json.dumps(encode(options)).encode())
            interrupted = _attend(process)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if interrupted:
            raise KeyboardInterrupt
        answer.seek(0)
        return errors.exit_code_of(process.returncode), json.loads(answer.read() or b"{}")


def _output(stream: TextIO | None, original: TextIO | None) -> int | None:
    """Return where the launcher's process writes what belongs on `stream`, as `subprocess` calls it."""
    if stream is None:  # a program without a console
        return subprocess.DEVNULL
    with suppress(OSError, ValueError):  # it takes nothing
        stream.flush()
    # The launcher itself draws the status line of a terminal, and goes on without a reader; a notebook gets text.
    return None if stream is original else subprocess.PIPE


def _attend(process: subprocess.Popen[bytes]) -> bool:
    """Show what the launcher prints until it has ended; return whether Ctrl-C ended it."""
    interrupted = False
    with selectors.DefaultSelector() as selector:
        for name in ("stdout", "stderr"):
            if (pipe := getattr(process, name)) is not None:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(pipe, selectors.EVENT_READ, (name, decoder))
        while True:
            try:
                while selector.get_map():
                    for key, _ in selector.select():
                        name, decoder = key.data
                        chunk = os.read(key.fd, CHUNK_BYTES)
                        stream = getattr(sys, name)  # as it is now: a notebook or `redirect_stdout` may replace it
                        text = decoder.decode(chunk, final=not chunk)
                        with suppress(OSError, ValueError):  # it takes nothing, and the run goes on
                            if stream is not None:
                                print(text, end="", file=stream, flush=True)
                        if not chunk:
                            selector.unregister(key.fd)
                process.wait()
            except KeyboardInterrupt:  # noqa: PERF203 - it is waited for again
                interrupted = True
                process.send_signal(signal.SIGINT)
            else:
                return interrupted
