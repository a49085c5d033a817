"""`tlaunch` in this process: the real `main` on descriptors, environment, directory and signals of its own."""

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from contextlib import ExitStack, contextmanager, suppress

import launcher.__main__
from launcher.cli.main import main

KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGCHLD,
                signal.SIGUSR1, signal.SIGUSR2)  # fmt: skip
STANDARD = ("stdin", "stdout", "stderr")


def call(arguments, *, cwd, env, given=None, encoding="utf-8", **files):
    with ExitStack() as stack:
        memories = [stack.enter_context(open(os.memfd_create(name), "r+b")) for name in STANDARD]  # noqa: PTH123
        if given is not None:
            memories[0].write(given.encode() if isinstance(given, str) else given)
            memories[0].seek(0)
        opened = [files.get(name) or memory for name, memory in zip(STANDARD, memories, strict=True)]
        with _as_if_alone(opened, arguments, cwd, env), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # as at the end of a process
            code = _exit_code()
        out, err = (os.pread(memory.fileno(), os.fstat(memory.fileno()).st_size, 0) for memory in memories[1:])
    if encoding:
        out, err = (raw.decode(encoding).replace("\r\n", "\n") for raw in (out, err))
    return subprocess.CompletedProcess(["tlaunch", *arguments], code, out, err)


def _exit_code():
    """The status with which the interpreter would end."""
    here = os.getpid()
    try:
        main()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
    finally:
        if os.getpid() != here:  # a command that should have been refused has forked: its child must run no tests
            os._exit(1)
    return 1


@contextmanager
def _as_if_alone(files, arguments, cwd, env):
    saved = os.environ.copy(), os.getcwd(), sys.argv, [getattr(sys, name) for name in STANDARD]  # noqa: PTH109
    descriptors = [os.dup(number) for number in range(3)]
    handlers = {number: signal.getsignal(number) for number in KEPT_SIGNALS}
    umask = os.umask(0o022)
    os.umask(umask)
    for stream in saved[3][1:]:
        stream.flush()
    try:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        os.chdir(cwd)
        _become(env)
        sys.argv = [launcher.__main__.__file__, *arguments]
        encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
        sys.stdin = open(0, encoding=encoding, errors="surrogateescape", closefd=False)  # noqa: SIM115
        for number, how in ((1, errors or sys.__stdout__.errors), (2, "backslashreplace")):
            stream = open(number, "w", encoding=encoding, errors=how, closefd=False)  # noqa: SIM115
            stream.reconfigure(line_buffering=number == 2)
            setattr(sys, STANDARD[number], stream)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        for name, stream in zip(STANDARD, saved[3], strict=True):
            setattr(sys, name, stream)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.umask(umask)
        sys.argv = saved[2]
        os.chdir(saved[1])
        _become(saved[0])


def _become(env):
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
