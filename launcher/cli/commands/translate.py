"""`tlaunch translate`: the lines of stdin, translated by a trained model."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_of, decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.training.model_choice import translation_model
from launcher.cli.training.translators import run_translator
from launcher.core.errors import EXIT_OK, UnreadableError
from launcher.core.run_dir import LATEST

EPILOG = """\b
Examples:
  tlaunch translate < sentences.fr > sentences.en     # by the latest run's model
  echo "Le chat dort." | tlaunch translate runs/RUN --beam 1
  tlaunch translate runs/RUN/checkpoints/step-500     # what you type is answered
  tlaunch translate model/ < test.fr > test.en

One line of stdout for each line of stdin, in its order; blank lines stay empty. Sentences are normalised as the training text was
(data.normalise). The direction is the one that the model was
trained for. Sentences that are longer than data.source_length tokens are cut, and told of on stderr.

Exit codes: 0, also where the reader of stdout has gone; 1 the model could not be loaded; 2 wrong usage, no such model, one
that is damaged, or a line that is not UTF-8 or longer than 1 MiB (those before it are translated); 130 Ctrl-C; else 128 + the signal that
ended the process that translates.
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
    with translation_model(runs_dir, model) as (directory, called):
        run_translator(
            directory, decoding_of(**decoding), "--name", called,
            stdin=None, output=sys.stdout.fileno(), total_bytes=_size_of_stdin(),
        )  # fmt: skip
    return EXIT_OK


def _size_of_stdin() -> int | None:
    """Return the bytes of the file that stdin is; None: a terminal or pipe, whose end nobody knows."""
    found = os.fstat(sys.stdin.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None
