"""Shell scripts that start a process for every device, such as `run.sh` of MindSpore's tutorials."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from launcher.cli.launch.external.tlaunch_line import TlaunchLine
from launcher.core.regular_files import open_regular
from launcher.core.text import printable
from launcher.program.program_command import SHELLS

MAX_BYTES = 100_000
_SETS_RANK = re.compile(rb"^[^#\n]*\b(?:RANK_ID|DEVICE_ID)=", re.MULTILINE)
_IN_BACKGROUND = re.compile(rb"^[^#\n]*[^&\n]&\s*$", re.MULTILINE)
_PROGRAM = re.compile(rb"^[^#\n]*?\b(python[\d.]*\s+[^\n>|&;]+)", re.MULTILINE)
_VARIABLE = re.compile(r"\$\w+|\$\{[^}]*\}|\$[@*#]")
_TABLE = b"RANK_TABLE_FILE"


def rank_script(argv: Sequence[str]) -> tuple[str, TlaunchLine | None] | None:
    """Return the name of the script that `argv` runs and its equivalent, or None if it does not start ranks itself.

    A script starts ranks if it sets RANK_ID or DEVICE_ID and has processes in the background. The equivalent has the
    script's first Python command; it is None if there is none.
    """
    is_shell = os.path.basename(argv[0]) in SHELLS  # noqa: PTH119 - any word
    script = next((word for word in argv[1:] if not word.startswith("-")), "") if is_shell else argv[0]
    if not script or not (is_shell or script.endswith(".sh")):
        return None
    text = b""
    with suppress(OSError), open(open_regular(script), "rb") as file:  # noqa: PTH123 - a descriptor; not a pipe
        text = file.read(MAX_BYTES)
    if not (_SETS_RANK.search(text) and _IN_BACKGROUND.search(text)):
        return None
    name = os.path.basename(script)  # noqa: PTH119
    if (found := _PROGRAM.search(text)) is None:
        return name, None
    program = printable(found[1].decode(errors="replace").strip())
    where, note = ("--devices N", "N with the number of devices")
    if _TABLE in text:
        where, note = ("--rank-table FILE", "FILE with the rank table")
    variables = ", ".join(dict.fromkeys(_VARIABLE.findall(program)))
    values = (f"{variables}: write the values that {name} would use",) if variables else ()
    notes = (f"replace {note}", *values, "ranks start in this directory, so check the paths")
    return name, TlaunchLine(None, f"tlaunch run {where} -- {program}", notes)
