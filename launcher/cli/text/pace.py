"""The pace of a training, and the time until its last step."""

from __future__ import annotations

import time

from launcher.runs.rank_figures import RankFigures

MIN_PACE_S = 2.0  # the shortest time to measure the pace


def unit_of_step(figures: RankFigures) -> str:
    return "sample" if figures.counts_samples else "step"


def step_text(figures: RankFigures) -> str:
    """Return the position in the training, such as "epoch 2, step 3 of 40", or "" if it is unknown."""
    end = "" if figures.last_step is None else f" of {figures.last_step}"
    epoch = None if figures.epoch is None else f"epoch {figures.epoch:g}"
    step = None if figures.step is None else f"{unit_of_step(figures)} {figures.step}{end}"
    return ", ".join(filter(None, (epoch, step)))


class Pace:
    """Estimates the steps per second of one rank, and the time until the last step, from figures that are noted."""

    def __init__(self) -> None:
        self.figures = RankFigures()  # the newest
        self.first: tuple[int, int] | None = None  # the first step seen and its time
        self._last = RankFigures()  # the last figures with a step
        self._time_ns = 0  # when the heartbeat was written, or the line was read
        self._noticed_s = 0.0  # when the figures were first seen

    def note(self, figures: RankFigures) -> None:
        """Take the newest figures of the rank."""
        if figures != self.figures or self.first is None:
            is_beat = figures.heartbeat is not None and not figures.from_log
            self._time_ns = figures.heartbeat.time_ns if is_beat and figures.heartbeat else time.time_ns()
            self._noticed_s = time.monotonic()
        self.figures = figures
        if figures.step is not None:
            last = self._last  # the step count may restart, as sample counts do with each epoch
            falls = last.step is not None and figures.step < last.step
            goes_back = figures.epoch is not None and last.epoch is not None and figures.epoch < last.epoch
            begins_anew = falls or goes_back or (figures.counts_samples and figures.epoch != last.epoch)
            if self.first is None or begins_anew:
                self.first = (figures.step, self._time_ns)
            self._last = figures

    @property
    def steps_per_s(self) -> float | None:
        """The steps per second since the first step seen, or None if the rate is unknown.

        If steps restart with each epoch, only the current epoch counts.
        """
        if self.first is None or self.figures.step is None:
            return None
        steps, seconds = self.figures.step - self.first[0], (self._time_ns - self.first[1]) / 1e9
        return steps / seconds if steps > 0 and seconds >= MIN_PACE_S else None

    @property
    def left_s(self) -> float | None:
        """The estimated seconds until the last step, or None if they cannot be estimated."""
        figures, pace = self.figures, self.steps_per_s
        is_of_epoch = figures.epoch is not None or figures.counts_samples or figures.is_bare
        if figures.step is None or figures.last_step is None or figures.step >= figures.last_step:
            return None
        if is_of_epoch or pace is None:
            return None
        left_s = (figures.last_step - figures.step) / pace - (time.monotonic() - self._noticed_s)
        return left_s if left_s > 0 else None  # the current step takes longer than expected
