"""The regular expressions that find the figures of a training in the lines that it prints."""

from __future__ import annotations

import re
from functools import cache

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
    """Return an expression for a unit with a number before it, after it, or both."""
    return _compiled(
        rf"(?:{BEGINS}(?P<before>{NUMBER})\s*(?P<before_scale>{scales})\s*|{ALONE}[\"']?){unit}"
        rf"(?:[\"']?(?P<sign>\s*[:=]?\s*)(?P<after>{NUMBER})(?P<after_scale>{scales}){ENDS})?"
    )


class FigurePatterns:
    """The expressions that find the figures of a training in a line, and recognise such lines.

    Compiling them takes 10 ms, so only commands that read lines do it.
    """

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
    """The forms of lines that are matched as a whole: progress bars, and lines of tutorials."""

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
