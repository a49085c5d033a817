"""`tlaunch data`: create the sentence pairs and images that the bundled trainer reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.cli.options.command_types import Group
from launcher.cli.options.types import A_PATH, IntRange
from launcher.cli.text.stdout import say

if TYPE_CHECKING:
    from launcher.corpus.corpus_files import Split

# \b stops click from rewrapping the lines below it
PREPROCESS_EXAMPLE = """\b
Example:
  tlaunch data preprocess --fr newstest.fr.sgm --en newstest.en.sgm \\
      --split test --output data/"""
SAMPLE_EXAMPLE = """\b
Example:
  tlaunch data sample --output data/
  tlaunch run --devices 2 --data data/"""


@click.group(cls=Group)
def data() -> None:
    """Prepare sentence pairs and images for the trainer."""


@data.command(epilog=PREPROCESS_EXAMPLE)
@click.option("--fr", required=True, type=A_PATH, metavar="FILE", help="Text in French or any other language.")
@click.option("--en", required=True, type=A_PATH, metavar="FILE", help="Text in English or any other language.")
@click.option(
    "--split",
    type=click.Choice(["train", "valid", "test"]),
    default="train",
    show_default=True,
    help="Write this split of the data set. Duplicate pairs are dropped only from the train split.",
)
@click.option("-o", "--output", required=True, type=A_PATH, metavar="DIR", help="Output directory.")
@click.option(
    "--max-words",
    type=IntRange(min=1),
    default=250,
    show_default=True,
    metavar="N",
    help="Drop sentence pairs with more than N words in either language.",
)
@click.option("--force", is_flag=True, help="Overwrite existing pair files.")
def preprocess(*, fr: Path, en: Path, split: Split, output: Path, max_words: int, force: bool) -> None:
    """Convert a French and an English file into wmt14.fr_en.txt and wmt14.en_fr.txt.

    The input is a pair of WMT .sgm files, matched by document and segment, or two plain text files, matched line by
    line. Either file may be gzipped. The paths of the written files are printed to stdout, everything else to stderr.
    """
    from launcher.corpus.preprocess import preprocess as run  # not needed for help

    result = run(fr=fr, en=en, output=output, split=split, max_words=max_words, force=force)
    for warning in result.warnings:
        say(f"warning: {warning}")
    for sentence in result.missing:
        say(f"dropped: {sentence}")
    if (more := result.dropped.get("missing partner", 0) - len(result.missing)) > 0:
        say(f"dropped: ... and {more:,} more without a partner")
    say(str(result))
    click.echo("\n".join(map(str, result.written)))


@data.command(epilog=SAMPLE_EXAMPLE)
@click.option(
    "--recipe",
    type=click.Choice(["transformer", "resnet50"]),
    default="transformer",
    show_default=True,
    help="Write sample data for this bundled program.",
)
@click.option("-o", "--output", required=True, type=A_PATH, metavar="DIR", help="Output directory.")
@click.option("--force", is_flag=True, help="Overwrite existing files.")
def sample(*, recipe: str, output: Path, force: bool) -> None:
    """Write a small data set for a bundled program.

    For the Transformer, this is the built-in French-English corpus that the trainer uses without --data: 12,000
    training, 500 validation and 500 test pairs, generated from a grammar. The test split is also written as a pair of
    .sgm files.

    For ResNet-50, these are drawn images of ten classes in CIFAR-10's binary format: 2,000 for training, 500 for
    testing.
    """
    from launcher.corpus.corpus_files import refuse_overwriting
    from launcher.corpus.image_sample import TEST_COUNT, TRAIN_COUNT, image_sample_files, write_image_sample
    from launcher.corpus.sample import SIZES, sample_files, write_sample

    files, write, about = sample_files, write_sample, [f"{size:,} {split}" for split, size in SIZES.items()]
    if recipe != "transformer":
        files, write, about = image_sample_files, write_image_sample, [f"{TRAIN_COUNT:,} train", f"{TEST_COUNT:,} test"]
    if not force:
        refuse_overwriting(files(output))
    written = write(output)
    say(f"wrote {', '.join(about)} {'pairs' if recipe == 'transformer' else 'images'}")
    click.echo("\n".join(map(str, written)))
