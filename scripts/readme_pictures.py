"""Make the README's two pictures from real runs.

    python scripts/readme_pictures.py

docs/images/verdict.svg: the terminal while the program of docs/tutorials/own-script.md fails. docs/images/report.png: the
page of `tlaunch report --html` after `make demo`. Needs torch, matplotlib, and Chromium, which draws the page.
"""

from __future__ import annotations

import io
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
TLAUNCH = Path(sys.executable).with_name("tlaunch")
COLUMNS = 100
PAGE_PX = 1000, 780
# `make demo`
DEMO = [
    "--rank-table",
    ROOT / "rank_tables/rank_table_8pcs.json",
    "--dp",
    2,
    "--mp",
    2,
    "--pp",
    2,
    "--micro-batches",
    2,
]


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary, "project")
        directory.mkdir()
        draw_verdict(directory)
        draw_report(directory)


def draw_verdict(directory: Path) -> None:
    """Write verdict.svg."""
    directory.joinpath("train.py").write_text(failing_program(), encoding="utf-8")
    command = ["run", "--devices", "4", "--", "python", "train.py"]
    shown = on_terminal([str(TLAUNCH), *command], directory).replace(f"{directory}/", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    console.print(Text(f"$ tlaunch {' '.join(command)}"))
    console.print(Text.from_ansi(shown))
    svg = console.export_svg(title="tlaunch", theme=DIMMED_MONOKAI, unique_id="verdict")
    fonts = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)  # images load nothing from the network
    IMAGES.joinpath("verdict.svg").write_text(fonts.sub("", svg), encoding="utf-8")


def failing_program() -> str:
    """Return the tutorial's program with the lines that make rank 2 fail."""
    page = ROOT.joinpath("docs/tutorials/own-script.md").read_text(encoding="utf-8")
    program, failure = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    before = "    dist.all_reduce(loss)\n"
    assert before in program
    return str(program.replace(before, failure + before))


def on_terminal(command: list[str], directory: Path) -> str:
    """Return what `command` writes to a terminal."""
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    environment["PATH"] = f"{TLAUNCH.parent}:{os.environ['PATH']}"
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=directory, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        pieces = []
        try:
            while piece := os.read(ours, 65536):
                pieces.append(piece)
        except OSError:  # EIO: all ends of the terminal are closed
            pass
    os.close(ours)
    return b"".join(pieces).decode().replace("\r\n", "\n")


def draw_report(directory: Path) -> None:
    """Write report.png."""
    subprocess.run([TLAUNCH, "run", *map(str, DEMO), "--name", "demo"], cwd=directory, check=True)
    subprocess.run([TLAUNCH, "report", "latest", "--html", "report.html"], cwd=directory, check=True)
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("error: no Chromium found\nhint: install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--window-size={},{}".format(*PAGE_PX)]
    picture = IMAGES / "report.png"
    page = (directory / "report.html").as_uri()
    subprocess.run([chromium, *options, f"--screenshot={picture}", page], check=True, capture_output=True)


if __name__ == "__main__":
    main()
