"""Whether a time limit of Slurm's leaves time to run."""

from __future__ import annotations

from launcher.core.errors import UsageError

SLURM_IS_EARLY_S = 60  # at most, with its warning


def check_time_limit(text: str, warn_before_s: int) -> None:
    """There is time to run before the warning. Slurm takes 0 for no limit."""
    from launcher.engines.slurm_time import seconds_of  # `--help` needs none of it

    try:
        limit_s = seconds_of(text)
    except ValueError:
        raise UsageError(
            f"--time-limit {text!r} is no time of Slurm's", hint="for instance 90, 36:00:00, 1-12"
        ) from None
    if limit_s and limit_s <= warn_before_s + SLURM_IS_EARLY_S:
        raise UsageError(
            f"--time-limit {text} is {limit_s} s, and ranks would be told to end {warn_before_s} s before it, or up to "
            f"{SLURM_IS_EARLY_S} s sooner: they would never run",
            hint="a longer --time-limit, or a shorter --warn-before",
        )
