"""`tlaunch evaluate`: how good the translations of a trained model are, by BLEU and chrF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import click

from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.decoding import decoding_of, decoding_options
from launcher.cli.options.run import runs_dir_option
from launcher.cli.options.types import PathType
from launcher.cli.text.output_file import put
from launcher.cli.text.stdout import write_out
from launcher.cli.training.model_choice import translation_model
from launcher.cli.training.translators import Decoding, run_translator
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

Both files are normalised as the training text was (data.normalise). Scores are
sacrebleu's, whose signatures are printed:

\b
  BLEU             of cased text, tokenized as mteval-v13a does
  BLEU, tokenized  as papers have it that prepare text by Moses's scripts and
                   score by multi-bleu.perl -lc: both sides go through Moses's
                   normalize-punctuation and tokenizer (sacremoses) and are
                   lower-cased
  chrF             of characters, up to 6 together (chrF2)

Exit codes: 0; 1 the model could not be loaded; 2 wrong usage, no such model or file, one that is damaged or not UTF-8, files that do not
have as many lines, or a package for scores is not installed; 130 Ctrl-C.
"""


@click.command(epilog=EPILOG)
@click.argument("model", default=LATEST, metavar="[MODEL]", shell_complete=complete_runs_or_files)
@click.option("--source", required=True, type=A_FILE, metavar="FILE", help="Sentences, one a line; may be gzip.")
@click.option("--reference", required=True, type=A_FILE, metavar="FILE", help="Their translations; may be gzip.")
@click.option(
    "-o",
    "--output",
    type=PathType(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Keep the model's translations.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
@decoding_options
@runs_dir_option
def evaluate(
    *, model: str, source: Path, reference: Path, output: Path | None, as_json: bool, runs_dir: Path, **decoding: Any
) -> int:
    """Score a trained model's translations with BLEU and chrF.

    The source file is translated, and that is compared with the reference.

    MODEL is what `tlaunch translate` takes: a run, a checkpoint of any layout, or a directory of a trained model.
    """
    how = decoding_of(**decoding)
    lines = list(read_lines(source))
    references = sum(1 for _ in read_lines(reference))
    if len(lines) != references or not lines:
        raise UsageError(
            f"{source} has {counted(len(lines), 'line')}, and {reference} has {references}",
            hint="each line of the one is translated in the same line of the other",
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
    if output is not None:  # at last: where it cannot be written, the scores are told all the same
        content = "".join(f"{text}\n" for text in found["hypotheses"]).encode(errors="replace")
        put(str(output), content, hint="--output FILE")
    return EXIT_OK


def _score_text(called: str, count: int, how: Decoding, scores: Mapping[str, Mapping[str, Any]]) -> str:
    names = {"BLEU": "bleu", "BLEU, tokenized": "bleu_tokenized", "chrF": "chrf"}
    lines = [f"{printable(called)}: {counted(count, 'sentence')}, beam {how.beam}, alpha {how.alpha:g}"]
    for title, name in names.items():
        lines.append(f"{title:<15}  {scores[name]['score']:6.2f}  {scores[name]['signature']}")
    return "".join(f"{line}\n" for line in lines)
