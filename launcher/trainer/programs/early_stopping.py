"""The end of a training whose validation loss falls no more."""

from __future__ import annotations

import dataclasses
import math

from launcher.checkpoint.index import NOT_VALIDATED, Validations


class EarlyStopping:
    """Counts validations without a lower loss, alike on all ranks, as all get the same losses."""

    def __init__(self, patience: int, validations: Validations) -> None:
        """Go on from `validations`. The training is to end after `patience` in a row without a lower loss; 0: never."""
        self._patience = patience
        self.validations = validations if patience else Validations(is_due=validations.is_due)

    @property
    def is_over(self) -> bool:
        """True once the training is to end."""
        return 0 < self._patience <= self.validations.since

    def after(self, loss: float | None) -> None:
        """Count a validation; a loss of None, and one that is not finite, is not lower."""
        if not self._patience:
            self.validations = NOT_VALIDATED
            return
        lowest, since = self.validations.lowest_loss, self.validations.since + 1
        if loss is not None and math.isfinite(loss) and (lowest is None or loss < lowest):
            lowest, since = loss, 0
        self.validations = Validations(lowest, since)

    def missed(self) -> None:
        """Mark the present state as still to be validated, by the run that resumes from it."""
        self.validations = dataclasses.replace(self.validations, is_due=True)

    def told(self) -> str:
        """Return the line of the log about the end."""
        lowest = self.validations.lowest_loss
        named = "none had a finite loss" if lowest is None else f"the lowest loss is {lowest:.6f}"
        return f"ended early: {self.validations.since} validations in a row have no lower loss; {named}"
