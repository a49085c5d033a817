"""`tlaunch translate`: the lines of stdin, translated by a trained model."""

from __future__ import annotations

import math
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from launcher.cli.launch.model_meant import translation_model
from launcher.cli.launch.text_lines import STDIN, stdin_lines
from launcher.cli.launch.translators import Translated, Translators, translators
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_of, decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import StreamWriter, say
from launcher.core.errors import EXIT_OK, UnreadableError
from launcher.core.run_dir import LATEST

LANGUAGES = {"fr": "French", "en": "English"}
EPILOG = """\b
Examples:
  tlaunch translate < sentences.fr > sentences.en     # by the latest run's model
  echo "Le chat dort." | tlaunch translate runs/RUN --beam 1
  tlaunch translate runs/RUN/checkpoints/step-500     # what you type is answered
  tlaunch translate model/ --devices 2 < test.fr > test.en

One line of stdout for each line of stdin, in its order; blank lines stay empty. Sentences are normalised as the training text was
(data.normalise). The direction is the one that the model was
trained for. Sentences that are longer than data.source_length tokens are cut, and told of on stderr.

Exit codes: 0, also where the reader of stdout has gone; 1 the model could not be loaded; 2 wrong usage, no such model, one
that is damaged, or a line that is not UTF-8 or longer than 1 MiB (those before it are translated); 130 Ctrl-C; else 128 + the signal that
ended a process of it.
"""


@click.command(epilog=EPILOG)
@click.argument("model", default=LATEST, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@decoding_options
@runs_dir_option
def translate(*, model: str, runs_dir: Path, **decoding: Any) -> int:
    """Translate lines from stdin with a trained model.

    MODEL is a run, whose final model or newest checkpoint is meant, a checkpoint of any layout, or a directory of a trained
    model.
    """
    if sys.stdin is None:
        raise UnreadableError("stdin is closed, so there is nothing to translate", hint="sentences in a file: < FILE")
    with (
        translation_model(runs_dir, model) as (directory, called),
        translators(directory, decoding_of(**decoding)) as ready,
    ):
        if sys.stdin.isatty():
            _greet(called, ready)
        with progress_bar("translate", _size_of_stdin()) as advance:
            _translate(ready, advance)
    return EXIT_OK


def _greet(called: str, ready: Translators) -> None:
    source, target = (LANGUAGES.get(code, code) for code in ready.ready[0].direction.split("_"))
    say(f"{called}: {source} to {target}, on {ready.ready[0].device}. A line is answered at once; Ctrl-D ends.")


def _translate(ready: Translators, advance: Callable[[int], None]) -> None:
    """Write the translations, until stdin ends or the reader of stdout has gone."""
    stdout = StreamWriter(sys.stdout)
    number = 0
    for together in ready.translate(stdin_lines()):
        for each in together:
            number += 1
            if each.cut_tokens:
                tell_cut(STDIN, number, each, ready)
        stdout.put_bytes("".join(f"{each.text}\n" for each in together).encode(errors="replace"))
        try:
            stdout.push(math.inf)
        except BrokenPipeError:
            stdout.forget()
            return
        advance(sum(each.line.size_bytes for each in together))


def tell_cut(file: str, number: int, each: Translated, ready: Translators) -> None:
    """Say that a sentence was longer than what the model reads."""
    most = ready.ready[0].source_length
    say(f"warning: {file}:{number}: cut to {most} tokens (data.source_length), {each.cut_tokens} were left out")


def _size_of_stdin() -> int | None:
    """Return the bytes of the file that stdin is; None: a terminal or pipe, whose end nobody knows."""
    found = os.fstat(sys.stdin.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None
