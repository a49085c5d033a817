"""The count of restarts: whether a failed attempt is worth another one."""

from __future__ import annotations

from launcher.core.verdict import Verdict


class Restarts:
    """Counts restarts, and remembers what the last attempt failed of, and how far attempts came.

    A failure that comes back before the program got any further would come back for ever. An attempt gets further when
    it tells a higher step than all attempts before it: one that begins anew repeats theirs first.
    """

    def __init__(self, allowed: int) -> None:
        self._left = allowed
        self._last_signature: str | None = None
        self._highest_step: int | None = None  # of all attempts
        self.refusal: str | None = None  # why restarts that are left are not used

    def decide(self, verdict: Verdict, step: int | None) -> bool:
        """Return whether to start all ranks again after `verdict`; call once for each failed attempt.

        `step`: the highest that any rank told in it; None if none told any.
        """
        further = step is not None and self._gets_further(step)
        repeated = verdict.signature is not None and verdict.signature == self._last_signature and not further
        self._last_signature = verdict.signature
        if self._left and repeated:
            self.refusal = f"the same failure came back before any progress ({verdict.signature})"
        if not self._left or repeated:
            return False
        self._left -= 1
        return True

    def _gets_further(self, step: int) -> bool:
        if self._highest_step is not None and step <= self._highest_step:
            return False
        self._highest_step = step
        return True
