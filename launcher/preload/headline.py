"""The headline of a rank started by an engine: one line on the engine's stderr that says what failed.

All other output of the rank goes to its log. Among the ranks that share a run directory, only the first to fail prints
a line; later failures follow from it. Nothing is printed for a rank that a signal ends; the engine reports that.
"""

from __future__ import annotations

import os

from .frames import without_secrets

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "headline"  # in the run directory: the headline, once printed
_LOG = "train.log"
_MAX_CHARS = 300
_LAST_BYTES = 4096


class Headline:
    """A duplicate of the engine's stderr descriptor. The first failure of a run is printed there."""

    def __init__(self, descriptor: int, device_dir: str) -> None:
        self._descriptor = descriptor
        self._device_dir = device_dir
        run = os.path.dirname(device_dir)
        try:
            run = run.removeprefix(os.path.join(os.getcwd(), ""))
        except OSError:  # the working directory is gone
            pass
        # A shell word, quoted without `shlex`: the program may have a module of that name.
        is_plain = run.isascii() and run.replace("/", "").replace("-", "").replace(".", "").replace("_", "").isalnum()
        self._run = run if is_plain else "'" + run.replace("'", "'\"'\"'") + "'"
        self._file = os.fstat(descriptor)
        os.register_at_fork(after_in_child=self._close)

    def print_failure(self, fields: dict[str, Any]) -> None:
        """Print the failure that failure.json records, unless another rank failed first."""
        run_dir, device = os.path.split(self._device_dir)
        what = _what(fields, os.path.join(self._device_dir, _LOG))
        rank = device.removeprefix("device")
        hint = f"`tlaunch why {self._run}` shows more, `tlaunch logs {self._run} --rank {rank}` its log"
        lines = f"error: rank {rank}: {what}", f"hint: {hint}"
        # Without terminal control characters.
        shown = ("".join(one if one.isprintable() else ascii(one)[1:-1] for one in line) for line in lines)
        text = "".join(f"{line}\n" for line in shown).encode()
        if _is_first(os.path.join(run_dir, FILE), text) and self._is_open():
            os.write(self._descriptor, text)

    def _is_open(self) -> bool:
        """Return True if the program has not closed the descriptor of the engine's stderr."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), self._file)
        except OSError:
            return False

    def _close(self) -> None:
        if self._is_open():
            os.close(self._descriptor)


def _is_first(path: str, text: bytes) -> bool:
    """Write the text to a file. Return False if another rank has already created the file."""
    try:
        said = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except OSError as error:
        return not isinstance(error, FileExistsError)  # a full disk, for instance; the engine's stderr may still work
    try:
        os.write(said, text)
    except OSError:
        pass
    finally:
        os.close(said)
    return True


def _what(fields: dict[str, Any], log: str) -> str:
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


def _last_line(log: str) -> str:
    try:
        with open(log, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
