"""Read the progress of a training from the lines that it prints: step, epoch, loss and speed.

    step 12 loss 1.23                           epoch: 3 step: 100, loss is 1.87
    Epoch 3 | Step 12/300 | loss=0.3            iter 100: loss 2.1, time 20ms
    Epoch: [0][  10/5005]  Loss 6.9 (7.0)       iteration 100/ 5000 | lm loss: 7.3E+00 | loss scale: 1.0
    {"step": 12, "loss": 1.2}                   train:  8%|▊   | 24/300 [00:02<00:27, 10.1it/s]
    [1,  2000] loss: 2.2                        Train Epoch: 1 [640/60000 (1%)] Loss: 2.3

A wrong number is worse than none, so a line counts only if it is unambiguous: it has a step with a loss, speed, epoch
or learning rate, or an epoch with a loss. A progress bar counts if the text before it is about training, or if it has a
loss. Lines about validation or tests are ignored, and so are other losses ("val loss", "aux_loss"). A tqdm bar without
words counts but is marked, since it may show any loop. All figures come from one line; lines are never combined.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from functools import cache

from launcher.core.errors import UsageError
from launcher.core.frozen import frozen
from launcher.logs.select import Matcher
from launcher.logs.terminal import printable, without_colours

MAX_LINE_CHARS = 2000  # characters examined per line
MAX_SEARCH_S = 0.5  # CPU time that a user's expression may take on the lines of one text
# For a bar without words: faster loops count bytes of a download or records being read.
MAX_BARE_STEPS_PER_S = 10_000
MAX_DIGITS = 15  # of a step: larger numbers are a time or an ID
CURSOR_UP = "\x1b[A"  # at the end of a tqdm bar that is below another one
LINE_END = re.compile(rb"[\r\n]")
# In lower case; a line without any of these has no figures. This test alone skips thousands of lines.
WORDS = (b"step", b"iter", b"epoch", b"batch", b"updates", b"%|", b"loss: ")
HINT_OF_GROUPS = (
    r"for instance 'it=(?P<step>\d+) cost=(?P<loss>\S+)'; groups are step, last_step, epoch, loss, tokens_per_s"
)

_LAST_WORD = re.compile(r"[^\W\d]+$")
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6}
# Before a word such as "step", these change its meaning: "warmup steps: 100".
_NOT_A_STEP = frozenset({
    "per", "total", "max", "warmup", "num", "best", "every", "each", "last", "final", "first", "next", "from", "resume",
    "resuming", "until", "eval", "evaluation", "val", "valid", "validation", "test", "decay", "save", "log", "logging",
    "accumulation", "skip", "skipping", "skipped",
})  # fmt: skip
# Allowed before "loss"; any other word may be the name of another loss.
_OF_THE_LOSS = frozenset({"", "info", "debug", "notice", "train", "training", "and", "with", "the", "current", "step"})
# After one of these words, a number belongs to the unit that follows it: "speed 900 tokens/s 12 GB".
_OF_A_SPEED = frozenset({
    "", "speed", "throughput", "rate", "performance", "info", "debug", "notice", "at", "of", "is", "and", "with", "avg", "average", "mean",
    "median", "current",
})  # fmt: skip
_NO_SPEED = ("loss", "lr", "epoch")  # numbers with these names are never a speed

# Repetitions are bounded, and a number never starts inside another, so that no line takes long.
WHOLE = r"(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,15})"
NUMBER = rf"[-+]?(?:{WHOLE}(?:\.\d{{0,20}})?|\.\d{{1,20}})(?:e[-+]?\d{{1,3}})?"
BEGINS = r"(?<![\w.,+-])"
ALONE = r"(?<![\w./-])"  # the start of a word that is not part of another word or of a path
IS = r"[\"']?\s*(?:[:=]|\bis\b)?\s*(?:tensor\()?[\"'\[]?\s*"
ENDS = r"(?!\w|\.\d)"
SECOND = r"s(?:ec(?:ond)?)?\b"
TOKENS = r"tok(?:en)?s?"
STEPS = r"(?:steps?|it(?:er)?s?|iterations?|batch(?:es)?)"


def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.IGNORECASE)


def _with_unit(unit: str, scales: str = "[km]?") -> re.Pattern[str]:
    """Compile a regular expression that finds a unit with a number before it, after it, or both."""
    return _compiled(
        rf"(?:{BEGINS}(?P<before>{NUMBER})\s*(?P<before_scale>{scales})\s*|{ALONE}[\"']?){unit}"
        rf"(?:[\"']?(?P<sign>\s*[:=]?\s*)(?P<after>{NUMBER})(?P<after_scale>{scales}){ENDS})?"
    )


class FigurePatterns:
    """Regular expressions for step, epoch, loss and speed. They are compiled at first use, since that takes 10 ms."""

    def __init__(self) -> None:
        self.step = _compiled(
            rf"{ALONE}[\"']?(?:(?:global|train|training|optimizer)[ _/-]?)?"
            rf"(?P<what>steps?|iter(?:ation)?|num_updates|batch)(?:\(train\))?[\"']?\s*[:=#]?\s*\[?\s*[\"']?"
            rf"(?P<step>{WHOLE})(?:\s*(?:/|\bof\b)\s*(?P<last>{WHOLE}))?(?![\w%]|\.\d|,\d|\s*(?:m?s|sec|seconds?|%)\b)"
        )
        self.epoch = _compiled(
            rf"{ALONE}[\"']?epoch(?:\(train\))?[\"']?\s*[:=#]?\s*\[?\s*[\"']?(?P<epoch>\d+(?:\.\d+)?)(?:/\d+)?\]?"
        )
        # After an epoch: "[10/5005]", "| 200/2928 batches", ": 10 / 1200 loss=1"; samples if followed by "(1%)", as in
        # torch's examples.
        self.within_epoch = _compiled(
            rf"\s*\[\s*(?P<step>{WHOLE})\s*/\s*(?P<last>{WHOLE})(?P<samples>\s*\(\s*\d{{1,3}}%\))?\s*\]"
            rf"|\s*[:|]\s*(?P<counted>{WHOLE})\s*/\s*(?P<of>{WHOLE})\s+(?:batches\b|loss\b)"
        )
        self.loss = _compiled(
            rf"{ALONE}[\"']?(?:(?:train|training|total|lm|avg|average|mean|running|batch)[ _/-])?loss{IS}"
            rf"(?P<loss>{NUMBER}|nan|[-+]?inf){ENDS}"
        )
        per_second = rf"(?:/{SECOND}|_per_{SECOND}|\s+per\s+{SECOND})"
        self.tokens = _with_unit(rf"{TOKENS}{per_second}")
        self.steps = _with_unit(rf"{STEPS}{per_second}")
        self.step_s = _with_unit(rf"s/{STEPS}\b", scales="")  # 5 ms/step is not 5 million seconds
        self.name_before = _compiled(r"(?P<name>[a-z][\w./-]{0,40})[\"']?\s?[:=]?\s?$")
        self.learning_rate = _compiled(rf"{ALONE}[\"']?(?:lr|learning[ _]rate){IS}{NUMBER}")
        self.other_data = _compiled(
            rf"{ALONE}(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|dev|predicting)(?![\w./-])"
            r"|\((?:val|test)\)"
        )


class LineForms:
    """Regular expressions that match a whole line: a progress bar, or a line as in torch's tutorials."""

    def __init__(self) -> None:
        self.bar = re.compile(
            rf"(?P<text>[^|]*?)(?<!\d)\d{{1,3}}%\|[^|]*\|\s*(?P<step>{WHOLE})/(?P<last>{WHOLE})\s*\[(?P<rest>.*)"
        )
        # What follows the bar's counts if tqdm does not know their unit: "00:03<00:06, 9.98it/s, acc=0.5]".
        self.bare = re.compile(rf"[\d:]+<[\d:]+, ?{NUMBER}(?:it/s|s/it)(?:, .*)?\]$")
        # In the text before a bar, and at its end.
        self.about_training = _compiled(r"train|epoch|step|iter")
        self.counts_epochs = _compiled(r"\bepochs?\s*:?\s*$")
        # Tutorials of torch: "[1, 2000] loss: 2.2" (epoch and step), "loss: 2.3 [ 64/60000]" (samples).
        self.tutorial = re.compile(
            rf"\[(?P<epoch>\d{{1,6}}), (?P<step>{WHOLE})\] loss: |loss: {NUMBER} \[ ?(?P<sample>{WHOLE})/ ?(?P<of>{WHOLE})\]$"
        )


figure_patterns = cache(FigurePatterns)
line_forms = cache(LineForms)


@frozen
class Figures:
    """The training figures in one log line. If `epoch` is known, `last_step` and `steps_per_s` are for one epoch."""

    step: int | None = None
    last_step: int | None = None
    epoch: float | None = None
    loss: float | None = None
    tokens_per_s: float | None = None  # as printed, of this rank or of all ranks
    steps_per_s: float | None = None
    counts_samples: bool = False  # `step` and `last_step` count samples
    is_bare: bool = False  # for a bar without words: it may count the training, an epoch, or another loop


GROUPS = frozenset({"step", "last_step", "epoch", "loss", "tokens_per_s"})


def progress_regex(text: str) -> Matcher:
    r"""Compile a user's regular expression whose named groups are training figures such as step and loss.

    >>> progress_regex(r"it=(?P<step>\d+)").groups
    frozenset({'step'})

    Raises UsageError if it is not a regular expression, or no group is a figure.
    """
    try:
        pattern = Matcher(text)
    except UsageError as error:
        raise UsageError(error.message, hint=HINT_OF_GROUPS) from error
    if unknown := sorted(pattern.groups - GROUPS):
        raise UsageError(f"{text!r}: there is no figure named {unknown[0]}", hint=HINT_OF_GROUPS)
    if not pattern.groups & {"step", "epoch", "loss"}:
        raise UsageError(f"{text!r} has no group named step, epoch or loss", hint=HINT_OF_GROUPS)
    return pattern


def figures_of(line: str, pattern: Matcher | None = None) -> Figures | None:
    """Return the step, epoch, loss and speed in a log line, or None if the line is not clearly about training.

    `pattern`: from `progress_regex`; it replaces the built-in expressions. Raises UsageError if it is too slow.
    """
    if len(line) > MAX_LINE_CHARS:
        return None
    is_below = line.endswith(CURSOR_UP)
    line = without_colours(line)
    if pattern is not None:
        said = match.groupdict() if (match := pattern.first(line)) is not None else {}
        epoch, loss, tokens_per_s = (_real(said.get(name)) for name in ("epoch", "loss", "tokens_per_s"))
        figures = Figures(_integer(said.get("step")), _integer(said.get("last_step")), epoch, loss, tokens_per_s)
        return None if figures == Figures() else figures
    line = " ".join(line.split())  # expressions allow spaces in many places, and would try each combination
    if (bar := line_forms().bar.match(line)) is not None:
        return _of_bar(bar, is_below=is_below)
    tutorial = line_forms().tutorial.match(line)
    if tutorial is None:
        return _of_text(line)
    if tutorial["epoch"] is not None:
        return Figures(_integer(tutorial["step"]), epoch=float(tutorial["epoch"]), loss=_loss(line))
    return Figures(_integer(tutorial["sample"]), _integer(tutorial["of"]), loss=_loss(line), counts_samples=True)


def figures_in(text: bytes, pattern: Matcher | None = None) -> Iterator[Figures]:
    """Yield the figures in the finished lines of `text`, last line first. A carriage return also ends a line."""
    begun_s = 0.0 if pattern is None else time.process_time()
    parts = LINE_END.split(text[: max(0, text.rfind(b"\n"), text.rfind(b"\r"))])
    if pattern is None and len(parts) > 1 and not _may_have_figures(text):
        return
    for part in reversed(parts):
        if pattern is None and not _may_have_figures(part):
            continue
        if pattern is not None and time.process_time() - begun_s > MAX_SEARCH_S:
            raise pattern.refused("takes too long to match the lines of the log")
        if part and (found := figures_of(part.decode(errors="replace"), pattern)) is not None:
            yield found


def last_line(text: bytes) -> bytes | None:
    """Return the last finished line of `text` that is not blank, with a newline, or None if there is none."""
    lines = LINE_END.split(text[: max(0, text.rfind(b"\n"), text.rfind(b"\r"))])
    shown = (line for line in reversed(lines) if without_colours(printable(line.decode(errors="replace"))).strip())
    return next((line + b"\n" for line in shown), None)


def _may_have_figures(text: bytes) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in WORDS)


def _of_text(line: str) -> Figures | None:
    patterns, lowered = figure_patterns(), line.lower()
    epoch = patterns.epoch.search(line) if "epoch" in lowered else None
    loss, tokens, steps = _loss(line), _tokens_per_s(line), _steps_per_s(line)
    found: re.Match[str] | None = None
    for match in patterns.step.finditer(line):
        needs_end = match["what"].casefold() == "batch"  # otherwise it may be a size
        needs_loss = match["what"].casefold() == "steps"  # otherwise it may be a setting
        if _word_before(line, match.start()) in _NOT_A_STEP or (needs_end and match["last"] is None):
            continue
        if not needs_loss or loss is not None:
            found = match
            break
    until = found or epoch
    if until is not None and until.start() and patterns.other_data.search(line, 0, until.start()):
        return None
    if epoch is not None and _word_before(line, epoch.start()) in _NOT_A_STEP:
        return None
    epoch_value = None if epoch is None else float(epoch["epoch"])
    if found is None:
        within = None if epoch is None else patterns.within_epoch.match(line, epoch.end())
        if within is not None:
            step, last = _integer(within["step"] or within["counted"]), _integer(within["last"] or within["of"])
            return Figures(step, last, epoch_value, loss, tokens, steps, within["samples"] is not None)
        return Figures(epoch=epoch_value, loss=loss) if epoch_value is not None and loss is not None else None
    step, last = _integer(found["step"]), _integer(found["last"])
    is_alone = loss is None and tokens is None and steps is None and epoch_value is None
    if step is None or (is_alone and patterns.learning_rate.search(line) is None):
        return None
    return Figures(step, last, epoch_value, loss, tokens, steps)


def _of_bar(bar: re.Match[str], *, is_below: bool) -> Figures | None:
    """Return the figures of a progress bar, or None if the bar is not clearly about training.

    `is_below`: this bar is drawn below another one, so it counts an inner loop or an evaluation.
    """
    patterns, forms, text = figure_patterns(), line_forms(), bar["text"]
    if not text.strip() and forms.bare.match(bar["rest"]) and _loss(bar["rest"]) is None:
        steps_per_s = _steps_per_s(bar["rest"])
        if is_below or not 0 < (steps_per_s or 0) <= MAX_BARE_STEPS_PER_S:
            return None
        return Figures(_integer(bar["step"]), _integer(bar["last"]), steps_per_s=steps_per_s, is_bare=True)
    loss = _loss(bar["rest"])
    if patterns.other_data.search(text) or (loss is None and not forms.about_training.search(text)):
        return None
    step, last = _integer(bar["step"]), _integer(bar["last"])
    if forms.counts_epochs.search(text):
        return None if step is None else Figures(epoch=float(step), loss=loss)
    epoch = patterns.epoch.search(text)
    epoch_value = None if epoch is None else float(epoch["epoch"])
    return Figures(step, last, epoch_value, loss, _tokens_per_s(bar["rest"]), _steps_per_s(bar["rest"]))


def _loss(line: str) -> float | None:
    for match in figure_patterns().loss.finditer(line):
        if _word_before(line, match.start()) in _OF_THE_LOSS:
            return _real(match["loss"])
    return None


def _tokens_per_s(line: str) -> float | None:
    return _number_of_unit(figure_patterns().tokens, line) if "tok" in line.lower() else None


def _steps_per_s(line: str) -> float | None:
    lowered = line.lower()
    if not ("s/" in lowered or "/s" in lowered or "per" in lowered):
        return None
    patterns = figure_patterns()
    each_s = _number_of_unit(patterns.step_s, line)
    return 1 / each_s if each_s else _number_of_unit(patterns.steps, line)


def _number_of_unit(pattern: re.Pattern[str], line: str) -> float | None:
    """Return the number that belongs to a unit, such as 900 in "900 tokens/s" and in "loss 4.09 tokens/s 900"."""
    for match in pattern.finditer(line):
        before, after = match["before"], match["after"]
        if before is not None:
            place = match.start("before")
            named = figure_patterns().name_before.search(line, max(0, place - 50), place)
            name = named["name"].casefold() if named else ""  # "loss" for `loss 4.09` and `loss=4.09`
            is_after = after is not None and (match["sign"].strip() or name not in _OF_A_SPEED)
            before = None if is_after or name.endswith(_NO_SPEED) else before
        side = "before" if before is not None else "after"
        if (value := _real(match[side])) is not None:
            return value * _SCALE[match[f"{side}_scale"].casefold()]
    return None


def _word_before(line: str, place: int) -> str:
    if not place or line[place - 1] != " ":
        return ""
    word = _LAST_WORD.search(line[:place].rstrip(" ")[-20:])
    return word[0].casefold() if word else ""


def _integer(text: str | None) -> int | None:
    digits = (text or "").replace(",", "")
    return int(digits) if digits.isdecimal() and len(digits) <= MAX_DIGITS else None


def _real(text: str | None) -> float | None:
    try:
        return None if text is None else float(text.replace(",", ""))
    except ValueError:
        return None
