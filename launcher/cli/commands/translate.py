"""`tlaunch translate` and `evaluate`: translate with a trained model, and score its translations with BLEU and chrF."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from launcher.cli.options.chosen_run import chosen_saved
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import PathType
from launcher.cli.run_options import words_of_option
from launcher.cli.text.output_file import put
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.cli.training.translators import Decoding, has_translation_model, run_translator, translation_model
from launcher.core.errors import UnreadableError, UsageError
from launcher.core.text import counted, printable, shell_word
from launcher.corpus.corpus_files import check_language
from launcher.corpus.text_files import read_lines

TRANSLATE_EPILOG = """\b
Examples:
  tlaunch translate < sentences.fr > sentences.en     # with the newest model
  echo "Le chat dort." | tlaunch translate runs/RUN --scores
  tlaunch translate runs/RUN/checkpoints/step-500     # interactively
  tlaunch translate model/ < test.fr > test.en

Each line of stdin becomes one line of stdout, in the same order; blank lines stay blank. Sentences are normalised like
the training text (data.normalise). The model translates in the direction that it was trained for. Sentences longer
than data.source_length tokens are cut, with a note on stderr.

Exit codes: 0, also if the reader of stdout has exited; 1 the model could not be loaded; 2 wrong usage, no such model, a
damaged model, or a line that is not UTF-8 or longer than 1 MiB (lines before it are translated); 130 Ctrl-C; otherwise
128 + the signal that ended the translating process.
"""


@click.command(epilog=TRANSLATE_EPILOG)
@click.argument("model", required=False, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@click.option(
    "--scores",
    is_flag=True,
    help="Print the score of each translation and a tab before it. 0 is the highest score; blank lines have nan.",
)
@decoding_options
@runs_dir_option
def translate(*, model: str | None, scores: bool, runs_dir: Path, **decoding: Any) -> None:
    """Translate lines from stdin with a trained model.

    MODEL is a run, a checkpoint of any layout, or a directory with a trained model. For a run, the final model or the
    newest checkpoint is used.  [default: the newest run with a translation model]
    """
    if sys.stdin is None:
        raise UnreadableError(
            "stdin is closed, so there is nothing to translate", hint="redirect a file to stdin: < FILE"
        )
    _check_model(model)
    stdin = os.fstat(sys.stdin.fileno())
    total_bytes = stdin.st_size if stat.S_ISREG(stdin.st_mode) else None  # unknown for a terminal or pipe
    with translation_model(runs_dir, _model(runs_dir, model)) as (directory, called):
        run_translator(
            directory, Decoding(**decoding), "--name", called, *["--scores"] * scores,
            stdin=None, output=sys.stdout.fileno(), total_bytes=total_bytes,
        )  # fmt: skip


def _check_model(model: str | None) -> None:
    """Raise UsageError if the argument MODEL is a text file or a sentence."""
    if model is None or os.path.isdir(model):  # noqa: PTH112 - a Path raises for some
        return
    if os.path.isfile(model):  # noqa: PTH113 - the same
        raise UsageError(f"{model} is a file, not a model", hint=f"use `tlaunch translate < {shell_word(model)}`")
    if len(model.split()) > 1:
        hint = f"use `echo {shell_word(model)} | tlaunch translate`"
        raise UsageError("MODEL contains spaces and does not exist; sentences are read from stdin", hint=hint)


def _model(runs_dir: Path, model: str | None) -> str:
    return chosen_saved(runs_dir, model, has_translation_model, "translation model")


A_FILE = PathType(exists=True, dir_okay=False, path_type=Path)
SCORES = {"BLEU": "bleu", "BLEU, tokenized": "bleu_tokenized", "chrF": "chrf"}
EVALUATE_EPILOG = """\b
Examples:
  tlaunch evaluate --source test.en --reference test.fr     # the newest model
  tlaunch evaluate runs/RUN --source test.en.gz --reference test.fr.gz --json
  tlaunch evaluate model/ --source test.en --reference test.fr --output test.out

The source is normalised like the training text (data.normalise). The scores
come from sacrebleu and are printed with its signatures. BLEU and chrF equal
those of the command `sacrebleu` on the same files:

\b
  BLEU             cased text, tokenized for the target language as sacrebleu
                   does: zh, ja-mecab, ko-mecab, or else mteval-v13a
  BLEU, tokenized  comparable to papers that prepare text with Moses's scripts
                   and score it with multi-bleu.perl -lc: both sides go through
                   Moses's normalize-punctuation and tokenizer (sacremoses) and
                   are lower-cased; only for languages that Moses knows
  chrF             character n-grams up to length 6 (chrF2)

Exit codes: 0; 1 the model could not be loaded; 2 wrong usage, no such model or file, a damaged model, a file that is
not UTF-8, files of different lengths, or a package for scores is not installed; 130 Ctrl-C.
"""


@click.command(epilog=EVALUATE_EPILOG)
@click.argument("model", required=False, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@click.option("--source", required=True, type=A_FILE, metavar="FILE", help="Sentences, one per line; may be gzipped.")
@click.option(
    "--reference",
    required=True,
    type=A_FILE,
    metavar="FILE",
    help="Reference translations, one per line, optionally gzipped.",
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the model's translations to FILE.",
)
@click.option(
    "--target-language",
    metavar="CODE",
    help="Language of the references, which selects the tokenization.  [default: as in training]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@decoding_options
@runs_dir_option
def evaluate(
    *,
    model: str | None,
    source: Path,
    reference: Path,
    output: Path | None,
    target_language: str | None,
    as_json: bool,
    runs_dir: Path,
    **decoding: Any,
) -> None:
    """Score a trained model's translations with BLEU and chrF.

    Translates the source file and compares the result with the reference.

    MODEL is a run, a checkpoint of any layout, or a directory with a trained model, as in `tlaunch translate`.
    """
    how = Decoding(**decoding)
    if target_language is not None:
        check_language("--target-language", target_language)
    if output is not None and any(output.exists() and output.samefile(text) for text in (source, reference)):
        raise UsageError(f"{output} is also the source or the reference", hint="use another file for --output")
    lines = list(read_lines(source))
    references = sum(1 for _ in read_lines(reference))
    if len(lines) != references or not lines:
        raise UsageError(
            f"{source} has {counted(len(lines), 'line')}, and {reference} has {references}",
            hint="use two non-empty files with the same number of lines",
        )
    with translation_model(runs_dir, _model(runs_dir, model)) as (directory, called), TemporaryFile() as results:
        run_translator(
            directory, how, "--source", str(source), "--reference", str(reference),
            *words_of_option("target_language", target_language),
            output=results.fileno(), total_bytes=sum(len(line.encode()) + 1 for line in lines),
        )  # fmt: skip
        results.seek(0)
        found = json.load(results)
    scores = found["scores"]
    for note in scores["notes"]:
        say(f"note: {note}")
    if as_json:
        facts = {"model": called, "sentences": len(lines), "beam": how.beam, "alpha": how.alpha}
        facts |= {name: scores[name] for name in SCORES.values()}
        write_out(json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    else:
        shown = [f"{printable(called)}: {counted(len(lines), 'sentence')}, beam {how.beam}, alpha {how.alpha:g}"]
        shown += [
            f"{title:<15}  {scores[name]['score']:6.2f}  {scores[name]['signature']}"
            for title, name in SCORES.items()
            if scores[name] is not None
        ]
        write_lines(shown)
    if output is not None:  # last, so that the scores are printed even if the file cannot be written
        content = "".join(f"{text}\n" for text in found["hypotheses"]).encode(errors="replace")
        put(str(output), content, hint="--output FILE")
