"""Ctrl-C while this command is still being imported: an end without a word, not a traceback out of an import.

Imported first by `launcher.cli.main`, which calls `over` once its own imports are done.
"""

from __future__ import annotations

import signal
from contextlib import suppress

_taken = False
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # what is ignored (`nohup`, `&`) stays ignored
    with suppress(ValueError):  # not the main thread of whoever imports us
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _taken = True


def over() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt again, for which there is somebody to catch it."""
    if _taken:
        signal.signal(signal.SIGINT, signal.default_int_handler)
