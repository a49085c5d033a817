"""The command line of a benchmark with several measurements."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parser(description: str | None, names: Sequence[str]) -> argparse.ArgumentParser:
    """With --rounds, and --only (None where all are wanted)."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--rounds", type=int, help="of every measurement")
    made.add_argument("--only", choices=names, action="append", help="this measurement; may be repeated")
    return made
