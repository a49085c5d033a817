"""The entry point of the command `tlaunch`, under a unique module name.

A directory `tlaunch/` on PYTHONPATH hides the installed package, so the command does not import that name.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command. Never returns."""
    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "tlaunch"))  # noqa: PTH100, PTH118, PTH120 - fast
    from _package import claim_name  # type: ignore[import-not-found] # noqa: PLC0415 - importable only now

    del sys.path[0]
    claim_name()
    from launcher.cli.main import main as run_command  # noqa: PLC0415 - likewise

    run_command()
