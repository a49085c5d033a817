"""Ctrl-C while this command is still being imported: a silent end, not a traceback out of an import.

`launcher.cli.main` imports this module first, and calls `lift` once its own imports are done.
"""

from __future__ import annotations

import signal
from contextlib import suppress

_is_set = False
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # what is ignored (`nohup`, `&`) stays ignored
    with suppress(ValueError):  # imported outside the main thread
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _is_set = True


def lift() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again, which is caught from now on."""
    if _is_set:
        signal.signal(signal.SIGINT, signal.default_int_handler)
