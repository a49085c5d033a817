"""Times in Slurm's format, and the time that a job has: until its limit, and from SIGTERM to SIGKILL.

Slurm sends SIGTERM at the limit, when a job is cancelled, and when it is preempted. KillWait seconds later it kills
everything that is left, including agents with their last output.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.core.errors import UnreadableError
from launcher.core.records import Supervision
from launcher.engines.slurm_allocation import Allocation, ask
from launcher.logs.terminal import escaped

# Minutes, M:S, H:M:S; or after days H, H:M, H:M:S.
_TIME = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?|(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_NO_LIMIT = ("UNLIMITED", "INFINITE")


def seconds_of(text: str) -> int | None:
    """Convert a time that sbatch accepts or squeue prints to seconds. Return None if there is no limit.

    >>> seconds_of("90"), seconds_of("2:30"), seconds_of("36:00:00"), seconds_of("1-12"), seconds_of("UNLIMITED")
    (5400, 150, 129600, 129600, None)

    Raises ValueError if `text` is not a time in this format.
    """
    if text.upper() in _NO_LIMIT:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a Slurm time")
    first, second, third, *after_days = (int(part or 0) for part in match.groups())
    if match[4] is not None:
        days, hours, minutes, seconds = after_days
    else:
        days, (hours, minutes, seconds) = 0, (first, second, third) if match[3] else (0, first, second)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def time_left_s(allocation: Allocation, environment: Mapping[str, str]) -> float | None:
    """Return the seconds until the job's time limit, or None if it has none. Raises UnreadableError."""
    try:
        # The first job of an array also has the array's number, for which Slurm would list all jobs of the array.
        said = ask(("squeue", "--noheader", f"--jobs={allocation.job_id}", "--format=%A %L"), environment)
        left = dict(line.split(maxsplit=1) for line in said.splitlines() if " " in line.strip())
        text = left.get(allocation.job_id, "").strip()
        try:
            return None if text == "NOT_SET" else seconds_of(text)
        except ValueError:
            raise UnreadableError(f"expected the job's remaining time from squeue, got {escaped(text)!r}") from None
    except UnreadableError:
        if allocation.ends_at_s is None:
            raise
        return max(0.0, allocation.ends_at_s - time.time())


def kill_wait_s(environment: Mapping[str, str]) -> float | None:
    """Return the seconds between Slurm's SIGTERM and SIGKILL, or None if they are unknown."""
    with suppress(UnreadableError):
        match = re.search(r"^KillWait\s*=\s*(\d+) sec", ask(("scontrol", "show", "config"), environment), re.MULTILINE)
        return float(match[1]) if match else None
    return None


def within_job(supervision: Supervision, allocation: Allocation, environment: Mapping[str, str]) -> Supervision:
    """Return a copy of `supervision` that contains the time when Slurm will kill the job, if this time is known."""
    waits_s = kill_wait_s(environment)
    try:
        left_s = time_left_s(allocation, environment)
    except UnreadableError:
        left_s = None
    killed_at_s = None if left_s is None else time.time() + left_s + (waits_s or 0.0)
    return replace(supervision, killed_at_s=killed_at_s, kill_wait_s=waits_s)
