"""`tlaunch evaluate`: score a trained model's translations with BLEU and chrF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import PathType
from launcher.cli.text.output_file import put
from launcher.cli.text.stdout import write_out
from launcher.cli.training.translators import Decoding, run_translator, translation_model
from launcher.core.errors import EXIT_OK, UsageError
from launcher.core.run_dir import LATEST
from launcher.core.text import counted, printable
from launcher.corpus.text_files import read_lines

A_FILE = PathType(exists=True, dir_okay=False, path_type=Path)
EPILOG = """\b
Examples:
  tlaunch evaluate --source test.en --reference test.fr     # the latest run's model
  tlaunch evaluate runs/RUN --source test.en.gz --reference test.fr.gz --json
  tlaunch evaluate model/ --source test.en --reference test.fr --output test.out

Both files are normalised like the training text (data.normalise). The scores
come from sacrebleu and are printed with its signatures:

\b
  BLEU             cased text, tokenized by mteval-v13a
  BLEU, tokenized  comparable to papers that prepare text with Moses's scripts
                   and score it with multi-bleu.perl -lc: both sides go through
                   Moses's normalize-punctuation and tokenizer (sacremoses) and
                   are lower-cased
  chrF             character n-grams up to length 6 (chrF2)

Exit codes: 0; 1 the model could not be loaded; 2 wrong usage, no such model or file, a damaged model, a file that is
not UTF-8, files of different lengths, or a package for scores is not installed; 130 Ctrl-C.
"""


@click.command(epilog=EPILOG)
@click.argument("model", default=LATEST, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@click.option("--source", required=True, type=A_FILE, metavar="FILE", help="Sentences, one per line; may be gzipped.")
@click.option(
    "--reference",
    required=True,
    type=A_FILE,
    metavar="FILE",
    help="Reference translations, one per line; may be gzipped.",
)
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the model's translations to FILE.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@decoding_options
@runs_dir_option
def evaluate(
    *, model: str, source: Path, reference: Path, output: Path | None, as_json: bool, runs_dir: Path, **decoding: Any
) -> int:
    """Score a trained model's translations with BLEU and chrF.

    Translates the source file and compares the result with the reference.

    MODEL is a run, a checkpoint of any layout, or a directory with a trained model, as in `tlaunch translate`.
    """
    how = Decoding(**decoding)
    lines = list(read_lines(source))
    references = sum(1 for _ in read_lines(reference))
    if len(lines) != references or not lines:
        raise UsageError(
            f"{source} has {counted(len(lines), 'line')}, and {reference} has {references}",
            hint="use files with the same number of lines, at least one",
        )
    with translation_model(runs_dir, model) as (directory, called), TemporaryFile() as results:
        run_translator(
            directory, how, "--source", str(source), "--reference", str(reference),
            output=results.fileno(), total_bytes=sum(len(line.encode()) + 1 for line in lines),
        )  # fmt: skip
        results.seek(0)
        found = json.load(results)
    if as_json:
        facts = {"model": called, "sentences": len(lines), "beam": how.beam, "alpha": how.alpha}
        write_out(json.dumps({**facts, **found["scores"]}, indent=2, ensure_ascii=False) + "\n")
    else:
        write_out(_score_text(called, len(lines), how, found["scores"]))
    if output is not None:  # last, so that the scores are printed even if the file cannot be written
        content = "".join(f"{text}\n" for text in found["hypotheses"]).encode(errors="replace")
        put(str(output), content, hint="--output FILE")
    return EXIT_OK


def _score_text(called: str, count: int, how: Decoding, scores: Mapping[str, Mapping[str, Any]]) -> str:
    names = {"BLEU": "bleu", "BLEU, tokenized": "bleu_tokenized", "chrF": "chrf"}
    lines = [f"{printable(called)}: {counted(count, 'sentence')}, beam {how.beam}, alpha {how.alpha:g}"]
    for title, name in names.items():
        lines.append(f"{title:<15}  {scores[name]['score']:6.2f}  {scores[name]['signature']}")
    return "".join(f"{line}\n" for line in lines)
