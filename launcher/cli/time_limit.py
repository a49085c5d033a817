"""A time limit as Slurm writes it, and whether it leaves time to run."""

from __future__ import annotations

import re

from launcher.core.errors import UsageError

# Minutes, M:S, H:M:S; or after days H, H:M, H:M:S.
TIME_LIMIT = re.compile(r"(\d+)(?::(\d+))?(?::(\d+))?|(\d+)-(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
SLURM_IS_EARLY_S = 60  # at most, with its warning


def check_time_limit(text: str, warn_before_s: int) -> None:
    """There is time to run before the warning. Slurm takes 0 for no limit."""
    limit_s = _seconds(text)
    if 0 < limit_s <= warn_before_s + SLURM_IS_EARLY_S:
        raise UsageError(
            f"--time-limit {text} is {limit_s} s, and ranks would be told to end {warn_before_s} s before it, or up to "
            f"{SLURM_IS_EARLY_S} s sooner: they would never run",
            hint="a longer --time-limit, or a shorter --warn-before",
        )


def _seconds(time_limit: str) -> int:
    """A time as Slurm writes it.

    >>> _seconds("90"), _seconds("2:30"), _seconds("36:00:00"), _seconds("1-12")
    (5400, 150, 129600, 129600)
    """
    match = TIME_LIMIT.fullmatch(time_limit)
    if match is None:
        raise UsageError(f"--time-limit {time_limit!r} is no time of Slurm's", hint="for instance 90, 36:00:00, 1-12")
    first, second, third, *after_days = (int(part or 0) for part in match.groups())
    if match[4] is not None:
        days, hours, minutes, seconds = after_days
    else:
        days, (hours, minutes, seconds) = 0, (first, second, third) if match[3] else (0, first, second)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
