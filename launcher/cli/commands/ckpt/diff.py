"""`tlaunch ckpt diff`: check whether two checkpoints have the same state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from launcher.checkpoint.index import read_index
from launcher.checkpoint.tensors import StoredBoxes, all_bytes, opened, state_bytes
from launcher.cli.commands.ckpt.output import check_numpy, chosen_checkpoints
from launcher.cli.options.chosen_run import json_option
from launcher.cli.options.completion import complete_runs_or_files
from launcher.cli.options.run import runs_dir_option
from launcher.cli.text.columns import aligned, counted
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.core.codec import encode, json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK
from launcher.core.text import printable

if TYPE_CHECKING:
    from launcher.checkpoint.difference import Difference  # imports numpy

EPILOG = """\b
Examples:
  tlaunch ckpt diff runs/latest/checkpoints/step-500 imported
  tlaunch ckpt diff RUN1 RUN2 --json | jq '.tensors[].largest_relative'

A and B are checkpoint directories. For a run or a directory of checkpoints, the newest is used. The state is the same
if a training would continue identically from both: step, parameters, the bits of all values, text, tokenizer, and the
settings that --resume requires to match. Layouts and other settings may differ. The relative difference is |a - b| /
max(|a|, |b|). Differences are inf (null in JSON) if a value is infinite or not a number.

Exit codes: 0 the same state; 1 different states; 2 wrong usage, no such checkpoint, or a damaged one.
"""
HEADER = ("PARAMETER", "KIND", "DIFFERING", "LARGEST DIFFERENCE", "RELATIVE")
DIGEST_CHARS = 12
DIGESTS = frozenset({"text", "tokenizer"})


@click.command(epilog=EPILOG)
@click.argument("first", metavar="A", shell_complete=complete_runs_or_files)
@click.argument("second", metavar="B", shell_complete=complete_runs_or_files)
@json_option
@runs_dir_option
def diff(*, first: str, second: str, as_json: bool, runs_dir: Path) -> int:
    """Check whether two checkpoints have the same state. Their layouts can differ."""
    check_numpy()
    from launcher.checkpoint.difference import compare

    paths = [chosen_checkpoints(runs_dir, each)[0] for each in (first, second)]
    one, other = map(read_index, paths)
    total = sum(all_bytes(index) + state_bytes(index) for index in (one, other))
    with (
        progress_bar("diff", total) as advance,
        opened(paths[0], one, advance, say) as stored,
        opened(paths[1], other, advance, say) as others,
    ):
        found = compare(stored, others)
        if as_json:
            content = {"paths": list(map(str, paths)), "same_state": found.is_same_state, **encode(found)}
            write_out(json_text(content))
        else:
            write_lines(_lines(stored, others, found))
    return EXIT_OK if found.is_same_state else EXIT_FAILURE


def _lines(first: StoredBoxes, second: StoredBoxes, found: Difference) -> Iterator[str]:
    yield from (f"{name}: {printable(str(each.path))}" for name, each in (("A", first), ("B", second)))
    for fact in found.facts:
        note = "" if fact.matters else " (may differ)"
        cut = DIGEST_CHARS if fact.name in DIGESTS else None
        first_value, second_value = (str(value)[:cut] or "(none)" for value in (fact.first, fact.second))
        yield printable(f"{fact.name}: {first_value} -> {second_value}{note}")
    for name, names in (("A", found.only_first), ("B", found.only_second)):
        yield from (printable(f"only in {name}: {each}") for each in names)
    for fact in found.shapes:
        shapes = (" x ".join(map(str, shape)) or "-" for shape in (fact.first, fact.second))
        yield printable(f"shape of {fact.name}: {' -> '.join(shapes)}")
    if found.tensors:
        rows = [
            (
                printable(each.parameter),
                each.kind,
                f"{each.differing:,} of {each.elements:,}",
                f"{each.largest_absolute:.3g}",
                f"{each.largest_relative:.3g}",
            )
            for each in found.tensors
        ]
        yield from aligned(HEADER, rows, right=frozenset(HEADER[2:]))
    if found.is_same_state:
        yield f"the same state: {counted(found.compared, 'tensor')} equal to the last bit"
    else:
        yield f"the state differs; {len(found.tensors):,} of {counted(found.compared, 'common tensor')} are not equal"
