"""`python -m launcher.trainer.decode MODEL`: the process behind `tlaunch translate` and `tlaunch evaluate`.

It translates the lines of stdin. With `--source` and `--reference` it translates a file, scores the translations and
writes `{"hypotheses": [...], "scores": {...}}`. Results go to the file descriptor `--output`, and messages to stderr.
On stdout it reports the number of bytes translated since the last report.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import select
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from launcher.core.errors import EXIT_OK, TlaunchError
from launcher.core.text import SHOWN_AS
from launcher.corpus.corpus_files import direction_of
from launcher.corpus.text_files import read_lines
from launcher.recipes.transformer.transformer_settings import DataConfig
from launcher.trainer.checkpoint.foreign.progress import Progress, report
from launcher.trainer.decode.beam import Search
from launcher.trainer.decode.score import all_scores, check_installed
from launcher.trainer.decode.stdin_lines import STDIN, stdin_lines
from launcher.trainer.decode.translator import Translation, Translator
from launcher.trainer.memory import keep_freed_memory
from launcher.trainer.saved import load_model

MAX_SENTENCES = 512  # sorted by length together, to fill batches with little padding


def main() -> int:
    faulthandler.enable()
    keep_freed_memory()
    parser = argparse.ArgumentParser(prog="python -m launcher.trainer.decode", description=__doc__)
    parser.add_argument("model", type=Path, help="directory of a trained model")
    parser.add_argument("--name", help="model name to show in messages")
    parser.add_argument("--output", type=int, required=True, help="file descriptor of the results")
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--alpha", type=float, required=True)
    parser.add_argument("--batch-tokens", type=int, required=True)
    parser.add_argument("--device", choices=("auto", "cpu"), required=True)
    parser.add_argument("--scores", action="store_true", help="write the score and a tab before each translation")
    parser.add_argument("--source", type=Path, help="file to translate instead of stdin")
    parser.add_argument("--reference", type=Path, help="file of reference translations")
    parser.add_argument("--target-language", help="language of the references (default: as in training)")
    options = parser.parse_args()
    try:
        decoder = _Decoder(options)
        if options.reference is None:
            decoder.translate_stdin()
        else:
            decoder.evaluate()
    except TlaunchError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    return EXIT_OK


class _Decoder:
    def __init__(self, options: argparse.Namespace) -> None:
        if options.reference is not None:
            check_installed()
        self._options = options
        self._device = _device(options.device)
        model, settings, tokenizer = load_model(options.model)
        self._data: DataConfig = settings.data
        self._translator = Translator(model.to(self._device), tokenizer, settings.data)
        self._progress = Progress()

    def translate_stdin(self) -> None:
        """Translate lines until stdin ends or the output is closed."""
        if os.isatty(sys.stdin.fileno()):
            where = f"{direction_of(self._data.languages)}, on {self._device}"
            report(f"{self._options.name}: {where}. Enter lines to translate; Ctrl-D ends.")
        done, is_shown = 0, os.isatty(self._options.output)
        for arrived in stdin_lines():
            for lines in _groups(arrived):
                found = self._translated(lines, STDIN, done)
                done += len(lines)
                try:
                    self._write("".join(line_of(each, scored=self._options.scores, shown=is_shown) for each in found))
                except BrokenPipeError:
                    return

    def evaluate(self) -> None:
        sources, references = (list(read_lines(path)) for path in (self._options.source, self._options.reference))
        hypotheses: list[str] = []
        for lines in _groups(sources):
            hypotheses += [each.text for each in self._translated(lines, str(self._options.source), len(hypotheses))]
        scores = all_scores(hypotheses, references, self._options.target_language or self._data.target_language)
        self._write(json.dumps({"hypotheses": hypotheses, "scores": asdict(scores)}))

    def _translated(self, lines: Sequence[str], file: str, before: int) -> list[Translation]:
        """Translate `lines`, which follow the first `before` lines of a file. Blank lines get an empty translation."""
        options, sentences = self._options, [line if line.strip() else "" for line in lines]
        how = Search(options.beam, options.alpha)
        found = self._translator.translate(sentences, how, batch_tokens=options.batch_tokens)
        cut = f"cut to {self._data.source_length} tokens (data.source_length)"
        for number, each in enumerate(found, start=before + 1):
            if each.cut_tokens:
                report(f"warning: {file}:{number}: {cut}; {each.cut_tokens} tokens were left out")
        self._progress.add(sum(len(line.encode()) + 1 for line in lines))
        return found

    def _write(self, text: str) -> None:
        """Write all of `text`, even if the output is a non-blocking pipe."""
        content = text.encode(errors="replace")
        while content:
            select.select([], [self._options.output], [])
            content = content[os.write(self._options.output, content) :]


def line_of(translation: Translation, *, scored: bool, shown: bool) -> str:
    """Return the line of a translation. With `shown`, control characters are escaped: an untrained model writes some."""
    text = translation.text.translate(SHOWN_AS) if shown else translation.text
    return f"{translation.score:.4f}\t{text}\n" if scored else f"{text}\n"


def _groups(lines: Sequence[str]) -> list[Sequence[str]]:
    return [lines[start : start + MAX_SENTENCES] for start in range(0, len(lines), MAX_SENTENCES)]


def _device(wanted: str) -> torch.device:
    if wanted == "cpu" or not torch.accelerator.is_available():
        return torch.device("cpu")
    return torch.accelerator.current_accelerator() or torch.device("cpu")


if __name__ == "__main__":
    sys.exit(main())
