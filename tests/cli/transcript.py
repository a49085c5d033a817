"""What commands have said, as text for a snapshot: nothing in it differs from one machine or moment to the next."""

import re
import shlex
import sys
from pathlib import Path

from launcher import __version__

ROOT = Path(__file__).resolve().parents[2]
SUBSTITUTES = (
    (re.escape(str(ROOT / "rank_tables")), "<tables>"),
    (rf"{re.escape(str(Path(sys.executable).parent))}/python[\d.]*", "<python>"),  # which may lie in the repository
    (re.escape(str(ROOT)), "<repository>"),
    (re.escape(str(Path(sys.executable).parent)), "<bin>"),
    (rf"(?<![\d.]){re.escape(__version__)}(?!\.?\d)", "<version>"),
    (r"(is (?:no|not a) (?:template|regular expression)): [^\n]+", r"\1: <Python's words>"),
    (r"(this machine, )[^ ,]+", r"\1<host>"),
    (r"\b20\d{6}-\d{6}\b", "<started>"),
    (r"\b20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?\b", "<time>"),
    (r"\b(process|pid|PID) \d+", r"\1 <pid>"),
    (r"\d+(\.\d+)? (ms|s) (ago|after its start|before the end)\b", r"<duration> \3"),
    (r"\b(running for|starting for|stopped after|took|in) \d+(\.\d+)? (ms|s)\b", r"\1 <duration>"),
)


def typed_lines(text):
    """The command lines of a text, each in a line of its own or between semicolons."""
    return [line.strip() for line in text.replace("\n", ";").split(";") if line.strip()]


def transcript(*done, directory):
    """A command line as typed, its stdout, its stderr behind `! `, and its exit code if there is one."""
    return "\n\n".join(_one(each, directory) for each in done)


def _one(done, directory):
    typed = shlex.join(map(str, done.args[done.args.index("launcher") + 1 if "launcher" in done.args else 1 :]))
    typed = typed.replace("\n", "\\n")
    lines = [f"$ tlaunch {typed}", *done.stdout.splitlines(), *(f"! {line}" for line in done.stderr.splitlines())]
    if done.returncode:
        lines.append(f"[exit code {done.returncode}]")
    return normalised("\n".join(line.rstrip() for line in lines), directory)


def normalised(text, directory):
    text = text.replace(str(directory), "<dir>")
    for pattern, substitute in SUBSTITUTES:
        text = re.sub(pattern, substitute, text)
    return text
