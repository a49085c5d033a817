"""Finds the error of a child process of a rank, when the rank's own exception only reports that the process failed.

| exception                                            | location of the child's error                                |
|------------------------------------------------------|--------------------------------------------------------------|
| of torch's DataLoader, `mp.spawn`, DataParallel      | in the message                                               |
| of a pool of `concurrent.futures`, multiprocessing   | in its cause, a `_RemoteTraceback`                           |
| `subprocess.CalledProcessError`                      | in the captured output, otherwise above it in the log        |
| torchrun's `ChildFailedError`                        | in its table, if the program records errors, else in the log |
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from textwrap import dedent

from launcher.core.frozen import frozen
from launcher.logs.tracebacks import FoundTraceback, find_traceback
from launcher.preload.frames import CAPTURED
from launcher.supervise.diagnosis.error_patterns import of_exception

LAST_WORDS_LINES = 20  # after a traceback with more output than this, the program continued
UNCAUGHT = 1  # the exit code of Python after an uncaught exception
_QUOTED = re.compile(r"^(?:Original )?Traceback \(most recent call last\):$", re.MULTILINE)
# torch's own text before the error of its child process.
_WRAPPER = re.compile(r"\s*(?:Caught \S+ in .{1,80}|-- Process \d+ terminated with the following error:)\s*")
_REMOTE = re.compile(r'RemoteTraceback: ?\n"""\n(?P<text>.*?)\n?"""', re.DOTALL)
_STATUS = re.compile(r"returned non-zero exit status (?P<status>\d+)")
_FIRST_IN_TABLE = re.compile(
    r"Root Cause .*?^ *exitcode +: (?P<status>-?\d+) .*?^ *traceback : (?P<words>.*?)\s*^={20,}$",
    re.DOTALL | re.MULTILINE,
)
_OF_PROCESS = "The process failed with this error:"


@frozen
class ChildError:
    """The error of a rank's child process. `is_sure` means that this error certainly ended the child process."""

    found: FoundTraceback
    is_sure: bool = True


def is_of_child(kind: str) -> bool:
    """Return True if exceptions of class `kind` report that a child process failed."""
    return kind.rpartition(".")[2] in {"ChildFailedError", "CalledProcessError"}


def child_error(
    kind: str, message: str, traceback: str | None, above: Sequence[FoundTraceback] = ()
) -> ChildError | None:
    """Return the error of a child process if an exception in the parent process reports it, else None.

    `above` holds the tracebacks that precede the exception's own traceback in the log, in order.
    """
    name = kind.rpartition(".")[2]
    if name == "ChildFailedError":
        return _of_torchrun(message, traceback, above)
    if name == "CalledProcessError":
        return _of_command(message, traceback, above)
    if _QUOTED.search(message):
        return _quoted(kind, message, traceback)
    raised = (name, message.strip().partition("\n")[0])
    for text in _REMOTE.findall(traceback or ""):
        found = find_traceback(text)
        if found and (found.type.rpartition(".")[2], found.message.strip().partition("\n")[0]) == raised:
            return ChildError(_shown(found, traceback))
    return None


def _quoted(kind: str, message: str, traceback: str | None) -> ChildError | None:
    """Return the error whose traceback is quoted in the message of an exception."""
    found = find_traceback(message)
    if found is None:
        return None
    words = _QUOTED.split(message, maxsplit=1)[0]
    if not _WRAPPER.fullmatch(words) and words.strip():
        said = words.strip().partition("\n")[0].rstrip(":")
        found = replace(found, type=kind, message=f"{said}: {found.type}: {found.message}")
    return ChildError(replace(found, text=traceback or found.text))


def _of_command(message: str, traceback: str | None, above: Sequence[FoundTraceback]) -> ChildError | None:
    _, is_captured, captured = (traceback or "").rpartition(CAPTURED)
    status = _STATUS.search(message)
    if status is None:  # a signal ended it
        return None
    if is_captured:
        found = find_traceback(captured)
        if found is None:
            said = next((line for line in reversed(captured.splitlines()) if line.strip()), "").strip()
            words = f"{message}: {said}" if said else message
            return ChildError(FoundTraceback("CalledProcessError", words, None, traceback or ""))
        shown = replace(found, text=traceback or "")
    elif above and above[-1].lines_after <= LAST_WORDS_LINES:
        shown = _shown(above[-1], traceback)
    else:
        return None
    return ChildError(shown, int(status["status"]) == UNCAUGHT and shown.lines_after == 0)


def _of_torchrun(message: str, traceback: str | None, above: Sequence[FoundTraceback]) -> ChildError | None:
    """Return the first failure among the processes that torchrun started."""
    first = _FIRST_IN_TABLE.search(message)
    if first is None:
        return None
    words, status = dedent(f"  {first['words']}"), int(first["status"])
    if recorded := find_traceback(words):
        return ChildError(_shown(recorded, traceback))
    if status < 0:  # "Signal 9 (SIGKILL) received by PID 4711"
        return ChildError(FoundTraceback("ChildFailedError", words.partition("\n")[0], "", traceback or ""))
    near = [one for one in above if one.lines_after <= LAST_WORDS_LINES]
    own = [one for one in near if not of_exception(one.type, one.message, one.text).consequence]
    if not near:
        said = f"a process of torchrun ended with exit code {status}"
        return ChildError(FoundTraceback("ChildFailedError", said, "", traceback or ""))
    return ChildError(_shown((own or near)[-1], traceback), status == UNCAUGHT)


def _shown(found: FoundTraceback, traceback: str | None) -> FoundTraceback:
    """Prepend the rank's own traceback to the traceback of a child process."""
    own = f"{traceback.rstrip()}\n\n{_OF_PROCESS}\n\n" if traceback else ""
    return replace(found, text=f"{own}{found.text}")
