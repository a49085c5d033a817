"""Lines on stderr."""

from __future__ import annotations

import sys
from contextlib import suppress

from launcher.core.text import printable


def say(text: str) -> None:
    """Print on stderr, where nothing of it moves a terminal's cursor; a stderr that takes nothing is no error."""
    with suppress(OSError):
        print("\n".join(map(printable, text.split("\n"))), file=sys.stderr, flush=True)
