"""Start what converts checkpoints in a process of its own, which may import torch, and show how far it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from launcher.checkpoint.index import Index
from launcher.cli.launch.program import Program
from launcher.cli.text.progress_bar import progress_bar
from launcher.cli.text.stdout import say
from launcher.core.env import PYTHONSAFEPATH
from launcher.core.errors import exit_code_of
from launcher.core.text import printable

CONVERTER = "launcher.trainer.checkpoint.foreign"
_BYTES = re.compile(r"[0-9]{1,19}\n")
FORMATS = DCP, MINDSPORE = "dcp", "mindspore"


def convert(index: Index, total_bytes: int, action: str, source: Path, *words: str) -> int:
    """Have so many bytes converted; return the exit code of the process that does it, which says itself why it failed.

    Raises:
        UnreadableError: a package that it needs is not installed.
    """
    environment = {**os.environ, PYTHONSAFEPATH: "1"}
    if missing := Program((sys.executable,), Path.cwd(), environment, index.program).missing():
        raise missing
    argv = [sys.executable, "-m", CONVERTER, action, str(source.absolute()), *words]
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
    ) as child:
        try:
            with progress_bar(action, total_bytes) as advance:
                assert child.stdout is not None, "it is a pipe"
                for line in child.stdout:
                    if _BYTES.fullmatch(line):
                        advance(int(line))
                    else:  # a package that it imports, or sitecustomize, has written it
                        say(printable(line.rstrip("\n")))
            return exit_code_of(child.wait())
        finally:
            child.terminate()  # it removes what it has written by then; of one that has ended nothing is left to end
