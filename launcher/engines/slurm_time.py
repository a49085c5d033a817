"""How much time Slurm leaves to a job that ends: its limit, and what passes between SIGTERM and SIGKILL.

At the limit, and when a job is cancelled or has to make room for another one, Slurm sends SIGTERM, and kills what is
left KillWait seconds later, agents and their last words too.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from launcher.core.errors import UnreadableError
from launcher.core.records import Supervision
from launcher.engines.slurm import Allocation, ask, time_left_s


def kill_wait_s(environment: Mapping[str, str]) -> float | None:
    """What Slurm lets pass between SIGTERM and SIGKILL, at the time limit too; None where it does not tell."""
    with suppress(UnreadableError):
        match = re.search(r"^KillWait\s*=\s*(\d+) sec", ask(("scontrol", "show", "config"), environment), re.MULTILINE)
        return float(match[1]) if match else None
    return None


def within_job(supervision: Supervision, allocation: Allocation, environment: Mapping[str, str]) -> Supervision:
    """As `supervision`, but knowing when Slurm will kill what is left. Asks the controller; silence is no limit."""
    waits_s = kill_wait_s(environment)
    try:
        left_s = time_left_s(allocation, environment)
    except UnreadableError:
        left_s = None
    killed_at_s = None if left_s is None else time.time() + left_s + (waits_s or 0.0)
    return replace(supervision, killed_at_s=killed_at_s, kill_wait_s=waits_s)
