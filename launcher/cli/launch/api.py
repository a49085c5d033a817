"""`tlaunch.launch`: `tlaunch run` for Python programs and notebooks.

The launcher is a separate process, because it forks and handles signals, which is unsafe with a notebook's threads or an
event loop. This process sends it the options, shows its output, and reads the result.
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

from launcher.cli.run_options import DEFAULT_JOIN_S, DEFAULT_LOST_S, EngineName, MindSporeWay, RunOptions
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
# Keywords that are lists of strings or paths, each with an example for the hint.
LISTS = {
    "command": "['python', 'train.py']",
    "exclude": "['10.0.0.2', '10.0.0.3/7']",
    "settings": "['train.steps=400']",
    "preload": "['torch']",
    "forward_signals": "['USR1']",
    "engine_options": "['--exclusive']",
}


@frozen
class LaunchResult:
    """The result of a run."""

    exit_code: int  # as of `tlaunch run`: 0 if all ranks succeeded
    run_dir: Path  # contains a log for each rank
    verdict: Verdict | None  # which rank failed first and why; None if no rank failed
    attempts: tuple[Attempt, ...]  # oldest first; more than one after restarts


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
    init_from: str | os.PathLike[str] | None = None,
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
    """Start a run as `tlaunch run` does, wait for it to end, and return its result.

    `command` is a list of arguments; without it, the bundled Transformer is trained. Each keyword is the option of the
    same name (see `tlaunch run --help`). `env` maps names to values, sizes are in bytes, and times are in seconds.

    The lines that `console` selects go to `sys.stdout`, and all other output goes to `sys.stderr`. Output that these
    streams do not accept is dropped.

    In the main thread, Ctrl-C (or a notebook's interrupt) ends the run within `grace` seconds, and a second Ctrl-C ends it
    at once. KeyboardInterrupt is raised after all processes of the run have ended. The run also ends if this process does.

    In an event loop, use `await asyncio.to_thread(tlaunch.launch, ...)`. Only `tlaunch stop` ends such a run early.

    Failing ranks do not raise an exception; check the exit code:

        >>> result = tlaunch.launch(["python", "train.py", "--epochs", "3"], devices=4)  # doctest: +SKIP
        >>> if result.exit_code:  # doctest: +SKIP
        ...     print(result.verdict.reason, result.run_dir / "device0" / "train.log")

    Raises:
        TlaunchError: the options, rank table, layout or program are invalid; nothing was started.
    """
    return _result(_run_apart(_options(dict(locals()))))  # every parameter is a field of RunOptions


def _options(given: dict[str, Any]) -> RunOptions:
    """Convert the keyword arguments of `launch` to options. Raises UsageError if one has the wrong type."""
    given["config"] = given["config"] and at_home(given["config"])
    given["runs_dir"] = given["runs_dir"] or usual_runs_dir()
    given["env"] = _pairs(given["env"] or {})
    for name in ("rank_table", "data", "resume", "init_from", "runs_dir"):
        if given[name] is not None:
            path = at_home(os.fspath(given[name]))
            given[name] = path if name in {"resume", "init_from"} else Path(path)
    for name, example in LISTS.items():
        if name != "preload" or given[name] is not None:
            given[name] = _texts(name, given[name], example)
    for name in ("preload", "forward_signals"):
        given[name] = None if given[name] is None else ",".join(given[name])
    return RunOptions(**given)


def _result(answer: Mapping[str, Any]) -> LaunchResult:
    """Convert the launcher process's answer to a result, or raise the TlaunchError that it contains."""
    if reported := answer.get("error"):
        error: errors.TlaunchError = getattr(errors, reported["kind"])(reported["message"], hint=reported["hint"])
        error.exit_code, error.has_lines = reported["exit_code"], reported["has_lines"]
        raise error
    state = look(RunDir(Path(answer["run_dir"])))
    return LaunchResult(answer["exit_code"], state.run_dir.root, state.verdict, state.attempts)


def _texts(name: str, given: Iterable[Any], example: str) -> tuple[str, ...]:
    """Convert a list of strings and paths to strings.

    Raises UsageError if the value is a single string, a function, or contains other types.
    """
    if callable(given):
        hint = "put the function into a script that every rank runs: launch(['python', 'train.py'], ...)"
        raise errors.UsageError(f"{name} is a function, but each rank runs a program in its own process", hint=hint)
    if isinstance(given, str | bytes):
        raise errors.UsageError(f"{name} is a string, not a list of strings", hint=f"write {name}={example}")
    texts = tuple(os.fspath(each) if isinstance(each, os.PathLike) else each for each in given)
    for text in texts:
        if not isinstance(text, str):
            raise errors.UsageError(f"{name}: {reprlib.repr(text)} is not a string", hint=f"write {name}={example}")
    return texts


def _pairs(env: Mapping[str, str]) -> tuple[str, ...]:
    """Convert a mapping of variables to values of `--env`. Raises UsageError if a name or value is invalid."""
    hint = "write env={'NCCL_DEBUG': 'INFO'}"
    for name, value in env.items():
        if not isinstance(name, str) or "=" in name:  # not shown: the text after = may be a secret
            raise errors.UsageError("env: the name of a variable is not a string, or contains `=`", hint=hint)
        if not isinstance(value, str):
            raise errors.UsageError(f"env: the value of {name} is not a string", hint=hint)
    return tuple(f"{name}={value}" for name, value in env.items())


def _run_apart(options: RunOptions) -> dict[str, Any]:
    """Run the launcher in a child process, and return the outcome or the error that it reports."""
    with (
        tempfile.TemporaryFile() as file,
        # If stdin, stdout or stderr is closed, the file may have its descriptor, which a child cannot inherit.
        os.fdopen(fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3), "rb") as answer,
        subprocess.Popen(
            module_argv(CHILD, str(os.getpid()), str(answer.fileno())),
            stdin=subprocess.PIPE,
            stdout=_output(sys.stdout, sys.__stdout__),
            stderr=_output(sys.stderr, sys.__stderr__),
            pass_fds=(answer.fileno(),),
            start_new_session=True,  # only this process gets the terminal's Ctrl-C, and forwards it once
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
        if content := answer.read():
            answered: dict[str, Any] = json.loads(content)
            return answered
    code = errors.exit_code_of(process.returncode)
    raise errors.TlaunchError(f"the launcher process ended with exit code {code} and reported no error")


def _output(stream: TextIO | None, original: TextIO | None) -> int | None:
    """Return the `stdout` or `stderr` argument of Popen for a stream of this process."""
    if stream is None:  # a program without a console
        return subprocess.DEVNULL
    with suppress(OSError, ValueError):  # the reader has closed
        stream.flush()
    # On a real stdout or stderr, the launcher draws its status line itself; a notebook gets text through a pipe.
    return None if stream is original else subprocess.PIPE


def _attend(process: subprocess.Popen[bytes]) -> bool:
    """Show the output of the launcher process until it ends, and return whether Ctrl-C was pressed."""
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
                        stream = getattr(sys, name)  # a notebook or `redirect_stdout` may replace it at any time
                        text = decoder.decode(chunk, final=not chunk)
                        with suppress(OSError, ValueError):  # the run continues without a reader
                            if stream is not None:
                                print(text, end="", file=stream, flush=True)
                        if not chunk:
                            selector.unregister(key.fd)
                process.wait()
            except KeyboardInterrupt:  # noqa: PERF203 - keep waiting
                interrupted = True
                process.send_signal(signal.SIGINT)
            else:
                return interrupted
