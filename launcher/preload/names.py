"""The name and the command line that `ps` and `top` show of this process: the program's."""

from __future__ import annotations

import os
import sys

_MAX_NAME_BYTES = 15


def command_line(kind: str, target: str, arguments: list[str]) -> list[str]:
    """Return the words that would start the program itself. Call while `sys.orig_argv` is as it was."""
    words = sys.orig_argv
    before = next((index for index, word in enumerate(words) if word.endswith("/preload/__main__.py")), 1)
    options = {"script": [], "module": ["-m"], "code": ["-c"]}[kind]
    return [*(words[:before] or [sys.executable]), *options, target, *arguments]


def show(words: list[str]) -> None:
    """Overwrite the memory that /proc shows as the command line, as far as it reaches."""
    try:
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), which counts from 1 and pid
        text = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - start - 1]
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            memory.write(text.ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        pass  # no Linux, no /proc, or no leave


def name() -> str:
    """Return the short name of this process; empty without /proc."""
    try:
        with open("/proc/self/comm", "rb") as file:
            return os.fsdecode(file.read().rstrip(b"\n"))
    except OSError:
        return ""


def rename(new: str) -> None:
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(os.fsencode(new)[:_MAX_NAME_BYTES])
    except OSError:
        pass
