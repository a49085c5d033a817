"""The expressions by which the figures of a training are found in the lines that it prints."""

from __future__ import annotations

import re
from functools import cache


def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(expression, re.IGNORECASE)


class FigurePatterns:
    """The expressions that lines are searched with. To compile them takes 10 ms, which only those pay who read lines."""

    def __init__(self) -> None:
        # Digits are counted, and a number is never begun within another, so that no line takes long.
        whole = r"(?:\d{1,3}(?:,\d{3}){1,5}|\d{1,15})"
        number = rf"[-+]?(?:{whole}(?:\.\d{{0,20}})?|\.\d{{1,20}})(?:e[-+]?\d{{1,3}})?"
        begins = r"(?<![\w.,+-])"
        alone = r"(?<![\w./-])"  # the beginning of a word that is no part of another, nor of a path
        is_ = r"[\"']?\s*(?:[:=]|\bis\b)?\s*(?:tensor\()?[\"'\[]?\s*"
        ends = r"(?!\w|\.\d)"
        second = r"s(?:ec(?:ond)?)?\b"
        tokens = r"tok(?:en)?s?"
        steps = r"(?:steps?|it(?:er)?s?|iterations?|batch(?:es)?)"

        self.step = _compiled(
            rf"{alone}[\"']?(?:(?:global|train|training|optimizer)[ _/-]?)?"
            rf"(?P<what>steps?|iter(?:ation)?|num_updates|batch)(?:\(train\))?[\"']?\s*[:=#]?\s*\[?\s*[\"']?"
            rf"(?P<step>{whole})(?:\s*(?:/|\bof\b)\s*(?P<last>{whole}))?(?![\w%]|\.\d|,\d|\s*(?:m?s|sec|seconds?|%)\b)"
        )
        self.epoch = _compiled(
            rf"{alone}[\"']?epoch(?:\(train\))?[\"']?\s*[:=#]?\s*\[?\s*[\"']?(?P<epoch>\d+(?:\.\d+)?)(?:/\d+)?\]?"
        )
        # Behind an epoch: "[10/5005]", "| 200/2928 batches", ": 10 / 1200 loss=1"; with "(1%)", as in the examples of torch, samples.
        self.within_epoch = _compiled(
            rf"\s*\[\s*(?P<step>{whole})\s*/\s*(?P<last>{whole})(?P<samples>\s*\(\s*\d{{1,3}}%\))?\s*\]"
            rf"|\s*[:|]\s*(?P<counted>{whole})\s*/\s*(?P<of>{whole})\s+(?:batches\b|loss\b)"
        )
        self.loss = _compiled(
            rf"{alone}[\"']?(?:(?:train|training|total|lm|avg|average|mean|running|batch)[ _/-])?loss{is_}"
            rf"(?P<loss>{number}|nan|[-+]?inf){ends}"
        )
        self.tokens = _compiled(
            rf"{begins}(?P<before>{number})\s*(?P<before_scale>[km]?)\s*{tokens}(?:/{second}|\s+per\s+{second})"
            rf"|{alone}[\"']?{tokens}(?:/{second}|_per_{second}|\s+per\s+{second})[\"']?\s*[:=]?\s*"
            rf"(?P<after>{number})(?P<after_scale>[km]?){ends}"
        )
        self.rate = _compiled(
            rf"{begins}(?P<before>{number})\s*{steps}/{second}|{begins}(?P<each>{number})\s*s/{steps}\b"
            rf"|{alone}{steps}(?:/{second}|_per_{second})\s*[:=]?\s*(?P<after>{number}){ends}"
        )
        self._prepare_rest(whole, number, alone, is_)

    def _prepare_rest(self, whole: str, number: str, alone: str, is_: str) -> None:
        """Compile what tells lines of a training from others, and the forms of lines that are read as a whole."""
        self.learning_rate = _compiled(rf"{alone}[\"']?(?:lr|learning[ _]rate){is_}{number}")
        self.other_data = _compiled(
            rf"{alone}(?:val|valid|validation|validating|eval|evaluation|evaluating|test|testing|dev|predicting)(?![\w./-])"
            r"|\((?:val|test)\)"
        )
        self.bar = re.compile(
            rf"(?P<text>[^|]*?)(?<!\d)\d{{1,3}}%\|[^|]*\|\s*(?P<step>{whole})/(?P<last>{whole})\s*\[(?P<rest>.*)"
        )
        self.about_training = _compiled(r"train|epoch|step|iter")
        # Tutorials of torch: "[1, 2000] loss: 2.2" (epoch and step), "loss: 2.3 [ 64/60000]" (samples).
        self.tutorial = re.compile(
            rf"\[(?P<epoch>\d{{1,6}}), (?P<step>{whole})\] loss: |loss: {number} \[ ?(?P<sample>{whole})/ ?(?P<of>{whole})\]$"
        )
        self.counts_epochs = _compiled(r"\bepochs?\s*:?\s*$")


figure_patterns = cache(FigurePatterns)
