"""The headline of a rank that an engine has started: what failed, in a line on the stderr that the engine reads.

Everything else that such a rank prints goes to its log. Of all ranks that see a common directory only the first that
fails says something: others fail in its wake. What ends a rank from outside (a signal) says nothing here; the engine does.
"""

from __future__ import annotations

import os

from .frames import without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "headline"  # in the run directory: the line, once it has been printed
_LOG = "train.log"
_MAX_CHARS = 300
_LAST_BYTES = 4096


class Headline:
    """The engine's stderr, under a descriptor that neither programs of the rank nor processes that it forks have."""

    def __init__(self, descriptor: int, device_dir: str) -> None:
        self._descriptor = descriptor
        self._device_dir = device_dir
        self._run = _word(_shown(os.path.dirname(device_dir)))
        self._file = os.fstat(descriptor)
        os.register_at_fork(after_in_child=self._close)

    def print_failure(self, fields: dict[str, Any]) -> None:
        """Say what failure.json says, unless another rank has failed before."""
        run_dir, device = os.path.split(self._device_dir)
        what = _what(fields, os.path.join(self._device_dir, _LOG))
        rank = device.removeprefix("device")
        hint = f"`tlaunch why {self._run}` shows more, `tlaunch logs {self._run} --rank {rank}` its log"
        lines = (f"error: rank {rank}: {what}", f"hint: {hint}")
        text = "".join(f"{_escaped(line)}\n" for line in lines).encode()
        if _is_first(os.path.join(run_dir, FILE), text) and self._is_there():
            os.write(self._descriptor, text)

    def _is_there(self) -> bool:
        """Return whether the descriptor is still what it was: a program may close all that it does not know."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._file)
        except OSError:
            return False

    def _close(self) -> None:
        if self._is_there():
            os.close(self._descriptor)


def _is_first(path: str, text: bytes) -> bool:
    """Leave the text there; return whether no other rank has done so before."""
    try:
        said = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        return not isinstance(error, FileExistsError)  # but a full disk, say; the engine's stderr may take it
    try:
        os.write(said, text)
    except OSError:
        pass
    finally:
        os.close(said)
    return True


def _escaped(line: str) -> str:
    """Return a line of which nothing acts on a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _what(fields: dict[str, Any], log: str) -> str:
    """Return the exception, or the exit code with what was said last, and where."""
    message = fields["message"].strip().partition("\n")[0]
    if fields["kind"] == "exception":
        what = f"{fields['type']}: {message}" if message else fields["type"]
    else:
        message = message or without_secrets(_last_line(log))
        what = f"exit code {fields['status']}" + (f": {message}" if message else "")
    what = what if len(what) <= _MAX_CHARS else what[:_MAX_CHARS] + "..."
    if not fields["where"]:
        return what
    return f"{what if what.endswith('..') else what.removesuffix('.')}, at {fields['where']}"


def _shown(path: str) -> str:
    """Return a path relative to the working directory where it is below that."""
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:  # it is gone
        return path
    return path.removeprefix(here)


def _word(text: str) -> str:
    """Return a text as a shell takes it for one word."""
    # Without `shlex`, which may be a module of the program's own.
    if text.isascii() and text.replace("/", "").replace("-", "").replace(".", "").replace("_", "").isalnum():
        return text
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _last_line(log: str) -> str:
    """Return the last line of a log that has a word in it."""
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
