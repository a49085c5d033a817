"""`tlaunch translate`: translate the lines of stdin with a trained model."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

import click

from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.training.translators import Decoding, run_translator, translation_model
from launcher.core.errors import EXIT_OK, UnreadableError
from launcher.core.run_dir import LATEST

EPILOG = """\b
Examples:
  tlaunch translate < sentences.fr > sentences.en     # with the latest run's model
  echo "Le chat dort." | tlaunch translate runs/RUN --beam 1
  tlaunch translate runs/RUN/checkpoints/step-500     # interactively
  tlaunch translate model/ < test.fr > test.en

Each line of stdin becomes one line of stdout, in the same order; blank lines stay blank. Sentences are normalised like
the training text (data.normalise). The model translates in the direction that it was trained for. Sentences longer
than data.source_length tokens are cut, with a note on stderr.

Exit codes: 0, also if the reader of stdout has exited; 1 the model could not be loaded; 2 wrong usage, no such model, a
damaged model, or a line that is not UTF-8 or longer than 1 MiB (lines before it are translated); 130 Ctrl-C; otherwise
128 + the signal that ended the translating process.
"""


@click.command(epilog=EPILOG)
@click.argument("model", default=LATEST, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@decoding_options
@runs_dir_option
def translate(*, model: str, runs_dir: Path, **decoding: Any) -> int:
    """Translate lines from stdin with a trained model.

    MODEL is a run, a checkpoint of any layout, or a directory with a trained model. For a run, the final model or the
    newest checkpoint is used.
    """
    if sys.stdin is None:
        raise UnreadableError(
            "stdin is closed, so there is nothing to translate", hint="redirect a file to stdin: < FILE"
        )
    with translation_model(runs_dir, model) as (directory, called):
        run_translator(
            directory, Decoding(**decoding), "--name", called,
            stdin=None, output=sys.stdout.fileno(), total_bytes=_size_of_stdin(),
        )  # fmt: skip
    return EXIT_OK


def _size_of_stdin() -> int | None:
    """Return the size in bytes if stdin is a file; None for a terminal or pipe."""
    found = os.fstat(sys.stdin.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else None
