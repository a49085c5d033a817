"""`tlaunch data`: create the sentence pairs and images that the bundled trainer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from launcher.cli.options.command_types import Group
from launcher.cli.options.types import A_PATH, IntRange
from launcher.cli.text.stdout import say
from launcher.core.errors import UsageError
from launcher.core.text import shell_words

# \b stops click from rewrapping the lines below it
PREPROCESS_EXAMPLE = """\b
Example:
  tlaunch data preprocess --source train.de.gz --target train.en.gz \\
      --output data/
  tlaunch run --devices 2 --data data/"""
REPLACED = {"--fr": "--source", "--en": "--target"}  # options of tlaunch 0.2
SAMPLE_EXAMPLE = """\b
Example:
  tlaunch data sample --output data/
  tlaunch run --devices 2 --data data/"""


@click.group(cls=Group)
def data() -> None:
    """Prepare sentence pairs and images for the trainer."""


class _Preprocess(click.Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raise UsageError with the line to type if options of an earlier version are given."""
        options = [word.partition("=") for word in args]
        if old := [name for name, _, _ in options if name in REPLACED]:
            words = ["".join((REPLACED.get(name, name), equals, value)) for name, equals, value in options]
            raise UsageError(
                f"{ctx.command_path} has no option {' and '.join(old)}",
                hint=f"use `{ctx.command_path} {shell_words(words)}`",
            )
        return super().parse_args(ctx, args)


@data.command(cls=_Preprocess, epilog=PREPROCESS_EXAMPLE)
@click.option("--source", required=True, type=A_PATH, metavar="FILE", help="Text to translate from.")
@click.option("--target", required=True, type=A_PATH, metavar="FILE", help="Translation of each sentence of --source.")
@click.option(
    "--source-language",
    default="",
    metavar="CODE",
    help="Language of --source, such as de or zh-TW.  [default: from the name, as in train.de.gz]",
)
@click.option("--target-language", default="", metavar="CODE", help="Language of --target.  [default: from the name]")
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
@click.option("--force", is_flag=True, help="Overwrite an existing pair file.")
def preprocess(*, source_language: str, target_language: str, **options: Any) -> None:
    """Convert a text and its translation into a file of sentence pairs, such as de_en.txt.

    The input is a pair of WMT .sgm files, matched by document and segment, or two plain text files, matched line by
    line. Either file may be gzipped. The path of the written file is printed to stdout, everything else to stderr.
    """
    from launcher.corpus.preprocess import preprocess as run  # not needed for help

    result = run(languages=(source_language, target_language), **options)
    for warning in result.warnings:
        say(f"warning: {warning}")
    for sentence in result.missing:
        say(f"dropped: {sentence}")
    if (more := result.dropped.get("missing partner", 0) - len(result.missing)) > 0:
        say(f"dropped: ... and {more:,} more without a partner")
    say(str(result))
    click.echo(str(result.written))


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
