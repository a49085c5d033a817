"""Training progress as text: step, loss and speed, the slowest rank, and silent ranks."""

from __future__ import annotations

import math
import re
import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from launcher.cli.text.columns import columns_of, duration, duration_in_seconds, number
from launcher.cli.text.pace import Pace, step_text, unit_of_step
from launcher.cli.text.verdict_text import rank_list
from launcher.core.run_dir import RunDir
from launcher.core.text import ranges
from launcher.runs.progress import RankStart
from launcher.runs.rank_figures import FiguresReader, RankFigures
from launcher.runs.silence import SilenceReader, Silences

if TYPE_CHECKING:
    from launcher.logs.select import Matcher

# The line of a step of the bundled trainer (launcher/trainer/programs/program.py).
STEP_LINE = re.compile(rb"^epoch: \d+ step: \d+(?:, total step: \d+)?, loss is .*\n", re.MULTILINE)
LOOK_EVERY_S = 1.0  # interval for the rank whose figures are shown
SURVEY_EVERY_S, SURVEY_S_PER_RANK = 2.0, 0.01  # interval for all ranks: every ten seconds for a thousand ranks
TOLD_EVERY_PLAIN_S = 30.0  # interval if each text is a separate line
ALL_SILENT_FROM_S = 10.0
LAGS_STEPS, LAGS_S = 2, 1.0  # smaller differences may come from reading ranks one after the other
PRINTS_SELDOM = 4  # a rank that prints this many times less often than others is not compared
GIVEN_UP = "--progress-regex takes too long"
HEAD = {"count": "", "elapsed": "for"}  # "4 ranks for 12 s"
# A narrow terminal shows the first of these that fit.
BY_IMPORTANCE = ("step", "refused", "silence", "silent", "lag", "elapsed", "loss", "left", "count", "speed")


class ProgressText:
    """Describes the progress of a run: step, loss and speed of one rank, and any slow or silent ranks."""

    def __init__(self, run_dir: RunDir, pattern: Matcher | None = None, *, on_terminal: bool) -> None:
        self._run_dir, self._on_terminal = run_dir, on_terminal
        self._reader = FiguresReader(run_dir, pattern)
        self._silence_reader = SilenceReader(run_dir)
        self.forget()

    def forget(self) -> None:
        self._next_s = self._next_survey_s = 0.0
        self._pace = Pace()  # of the rank `_lead`
        self._lead: int | None = None
        self._lagging: tuple[int, str] | None = None  # the slowest rank and its step at the last survey
        self._lag = ""  # text about a rank that lagged at two surveys in a row
        self._seen: Mapping[int, RankFigures] = {}  # at the last survey
        self._changes = Counter[int]()  # by rank: surveys at which its figures had changed
        self._signs: list[object] = []
        self.silences = Silences()
        self._sign_s: float | None = None  # when output of any rank was last seen; None without files

    def look(self, starts: Mapping[int, RankStart], ended: Collection[int] = ()) -> None:
        """Read the progress, unless the last read was too recent. Ranks in `ended` never count as silent."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        start = None if self._lead is None else starts.get(self._lead)
        is_due = now_s >= self._next_survey_s and (self._on_terminal or start is None)
        if is_due:
            self._survey(starts, ended, now_s)
        elif self._lead is not None and start is not None:
            self._pace.note(self._reader.look(self._lead, start.event.log_offset))
        often = self._on_terminal or not self._figures.known
        self._next_s = now_s + (LOOK_EVERY_S if often else TOLD_EVERY_PLAIN_S)

    def text(self, starts: Mapping[int, RankStart]) -> str:
        """Return the progress, such as "step 120 of 400, loss 3.2140, 48 s left", or "" if it is unknown."""
        self.look(starts)
        return ", ".join(self.parts().values())

    def parts(self) -> dict[str, str]:
        figures = self._figures
        left_s = self._pace.left_s
        sign_age_s = -math.inf if self._sign_s is None else time.monotonic() - self._sign_s
        silent_s = self.silences.silent_s  # of ranks that are silent while others write
        silence = f"silent for {duration(sign_age_s)}" if sign_age_s >= ALL_SILENT_FROM_S else ""
        silent = ""
        if silent_s and not silence and not self.silences.all_are_silent:
            silent = f"{rank_list(silent_s)} silent for {duration(max(silent_s.values()))}"
        lags_for_silence = self._lagging is not None and self._lagging[0] in silent_s
        parts = {
            "step": step_text(figures),
            "refused": GIVEN_UP if self._reader.refused is not None else "",
            "loss": "" if figures.loss is None else f"loss {number(figures.loss, '.4f')}",
            "speed": self._speed(),
            "left": "" if left_s is None else f"{duration(left_s)} left",
            "lag": "" if lags_for_silence else self._lag,
            "silence": silence,
            "silent": silent,
        }
        return {name: text for name, text in parts.items() if text}

    def without_steps(self, lines: bytes, starts: Mapping[int, RankStart]) -> bytes:
        """Remove rank 0's step lines from its output if heartbeats already report its steps."""
        if not STEP_LINE.search(lines):
            return lines
        if not self._knows_steps:  # the heartbeat of a step is written before its line
            lead = min(starts, default=0) if self._lead is None else self._lead
            figures = self._reader.look(lead, starts[lead].event.log_offset if lead in starts else 0)
            if figures.known and not figures.from_log:
                self._lead = lead
                self._pace.note(figures)
        return STEP_LINE.sub(b"", lines) if self._knows_steps else lines

    @property
    def _knows_steps(self) -> bool:
        return self._figures.last_step is not None and not self._figures.from_log

    @property
    def _figures(self) -> RankFigures:
        return self._pace.figures

    def _survey(self, starts: Mapping[int, RankStart], ended: Collection[int], now_s: float) -> None:
        """Read the progress of all ranks, choose the rank to show, and find slow and silent ranks."""
        looks = {rank: self._reader.look(rank, starts[rank].event.log_offset) for rank in sorted(starts)}
        if self._lead not in looks:
            self._lead = next((rank for rank, each in looks.items() if each.known), None)
        if self._lead is not None:
            self._pace.note(looks[self._lead])
        interval_s = LOOK_EVERY_S if self._lead is None else SURVEY_EVERY_S
        self._next_survey_s = now_s + max(interval_s, SURVEY_S_PER_RANK * len(starts))
        if not self._on_terminal:  # each update would be a separate line
            return
        beats = {rank: each.heartbeat for rank, each in looks.items() if rank not in ended}
        beats_ns = {rank: None if beat is None else beat.time_ns for rank, beat in beats.items()}
        self.silences = self._silence_reader.look(beats_ns, {rank: start.time_ns for rank, start in starts.items()})
        signs: list[object] = [*filter(None, beats_ns.values()), *self.silences.logs]
        if signs and signs != self._signs:
            self._sign_s = now_s
        self._signs = signs
        self._changes.update(rank for rank, each in looks.items() if each != self._seen.get(rank))
        self._seen = looks
        before, self._lagging = self._lagging, self._lagging_of(looks)
        stays = before is not None and self._lagging is not None and before[0] == self._lagging[0]
        self._lag = f"slowest rank {self._lagging[0]} at {self._lagging[1]}" if stays and self._lagging else ""

    def _lagging_of(self, looks: Mapping[int, RankFigures]) -> tuple[int, str] | None:
        """Return the slowest rank and its step, or None if its lag may come from reading ranks at different times.

        Ranks that print figures much less often than others, such as once per epoch, are not compared.
        """
        enough = max(self._changes.values(), default=0) / PRINTS_SELDOM
        steps = {
            rank: (each.epoch or 0.0, each.step)
            for rank, each in looks.items()
            if each.step is not None and (not each.from_log or self._changes[rank] >= enough)
        }
        if not steps:
            return None
        lowest, highest = min(steps, key=lambda rank: steps[rank]), max(steps.values())
        epoch, step = steps[lowest]
        if epoch < highest[0]:
            return lowest, f"epoch {epoch:g}, {unit_of_step(self._figures)} {step}"
        behind = highest[1] - step
        lags = behind >= max(LAGS_STEPS, LAGS_S * (self._pace.steps_per_s or 0.0))
        return (lowest, f"{unit_of_step(self._figures)} {step}") if lags else None

    def _speed(self) -> str:
        figures = self._figures
        if figures.tokens_per_s is not None:
            return f"{number(figures.tokens_per_s, ',.0f')} tokens/s"
        pace = figures.steps_per_s or self._pace.steps_per_s
        return (
            "" if pace is None else f"{number(pace, ',.0f' if pace >= 100 else '.3g')} {unit_of_step(self._figures)}s/s"
        )


def about_silence(silent_s: Mapping[int, float], running: int, argument: str) -> tuple[str, str]:
    """Return a line about silent ranks, and a line with the command that shows their stacks.

    `silent_s` maps global ranks to seconds of silence, `running` is the number of running ranks, and `argument` is the
    RUN argument quoted for a shell. The command is a separate line, so that terminals do not wrap it.
    """
    seconds = duration_in_seconds(max(silent_s.values()))
    if len(silent_s) == running > 1:
        return f"all ranks have been silent for {seconds}; to show their stacks:", f"  tlaunch stacks {argument}"
    whose, verb = ("its stack", "has") if len(silent_s) == 1 else ("their stacks", "have")
    what = f"{rank_list(silent_s)} {verb} been silent for {seconds}; to show {whose}:"
    return what, f"  tlaunch stacks {argument} --rank {ranges(silent_s)}"


def fitting(who: str, elapsed: str, parts: Mapping[str, str], width: int) -> str:
    """Return a text such as "4 ranks for 12 s: step 3, loss 2.5", shortened to fit `width`."""
    whole = {"count": who, "elapsed": elapsed, **parts}
    kept: dict[str, str] = {}
    for name in BY_IMPORTANCE:
        more = {each: text for each, text in whole.items() if each in kept or each == name}
        if columns_of(_sentence(more)) <= width:
            kept = more
    return _sentence(kept)


def _sentence(kept: Mapping[str, str]) -> str:
    head = [f"{word} {kept[name]}".strip() for name, word in HEAD.items() if name in kept]
    tail = ", ".join(text for name, text in kept.items() if name not in HEAD)
    return ": ".join(filter(None, (" ".join(head).removeprefix("for "), tail)))
