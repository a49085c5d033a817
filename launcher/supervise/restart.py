"""Whether a failed attempt is worth another one."""

from __future__ import annotations

from launcher.core.verdict import Verdict


class Restarts:
    """Counts restarts, and remembers what the last attempt failed of.

    A failure that comes back before the program got any further would come back for ever.
    """

    def __init__(self, allowed: int) -> None:
        self._left = allowed
        self._last_signature: str | None = None
        self.refusal: str | None = None  # why restarts that are left are not used

    def decide(self, verdict: Verdict, *, progressed: bool) -> bool:
        """Whether to start all ranks again after `verdict`; call once for each failed attempt."""
        repeated = verdict.signature is not None and verdict.signature == self._last_signature and not progressed
        self._last_signature = verdict.signature
        if self._left and repeated:
            self.refusal = f"the same failure came back before any progress ({verdict.signature})"
        if not self._left or repeated:
            return False
        self._left -= 1
        return True
