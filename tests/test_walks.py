"""The walks of docs/internals/architecture.md name the files that a real run takes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "internals" / "architecture.md"
TRACER = ROOT / "tests" / "programs" / "walk" / "sitecustomize.py"
MARKER = "walked value"  # in the text that is followed; no program under test spells it in one piece


@dataclass(frozen=True)
class Walk:
    """A walk: the heading of its section, what it follows, and how many files outside `core` it may take."""

    heading: str
    max_files: int
    marker: str = ""
    types: tuple[str, ...] = ()
    within: str | None = None
    until_fork: bool = False


TABLE = Walk(
    "A rank table, from the command line to a forked rank", 40, "walked_table.json",
    ("Document", "Table", "Cluster", "RankSpec"), until_fork=True,
)  # fmt: skip
FAILURE = Walk(
    "A failure, from the exit of a rank to the printed verdict", 35, MARKER, ("Verdict", "RankEnded", "RankFailed")
)
LINE = Walk("A line, from a rank to `logs -f`", 20, MARKER)
BATCH = Walk(
    "A batch, through a training step", 15, types=("Batch", "Example", "Tensor", "Parameter"), within="train_step"
)


def named_files(walk):
    """The files that the page names in the section of this walk."""
    pattern = rf"^### {re.escape(walk.heading)}$(.*?)(?=^##|\Z)"
    section = re.search(pattern, PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert section, f"{PAGE} has no section '### {walk.heading}'"
    return re.findall(r"`(launcher/[\w/]+\.py)`", section[1])


def traced(walk, folder, command, cwd):
    """Start a command of tlaunch whose processes note what handles the value, and return it."""
    folder.mkdir()
    shutil.copy(TRACER, folder)
    (folder / "walk.json").write_text(json.dumps({"package": f"{ROOT / 'launcher'}/", **asdict(walk)}))
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *command], cwd=cwd, env={**os.environ, "PYTHONPATH": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def check_page(walk, folder):
    """The page names every file that was noted, none twice, and none that does not exist."""
    seen = {}
    for line in (folder / "seen.txt").read_text().splitlines():
        path, function = line.split("\t")
        seen.setdefault(str(Path(path).relative_to(ROOT)), function)
    named = named_files(walk)
    gone = [path for path in named if not (ROOT / path).is_file()]
    missing = [f"{path} (its {function}())" for path, function in seen.items() if path not in named]
    assert not gone, f"rename or remove in the section '{walk.heading}' of {PAGE}: {', '.join(gone)}"
    assert not missing, f"add a line to the section '{walk.heading}' of {PAGE} for each of: {', '.join(missing)}"
    assert len(named) == len(set(named)), "a file is named twice"
    assert sum(not path.startswith("launcher/core/") for path in named) <= walk.max_files


def follow(walk, tmp_path, *command, exit_code=0):
    """Run a command of tlaunch to its end, and check the page against the files that it took."""
    process = traced(walk, tmp_path / "tracer", command, tmp_path)
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == exit_code, stdout + stderr
    check_page(walk, tmp_path / "tracer")


def test_a_rank_table_to_a_forked_rank(tmp_path):
    """Followed: the path of the table, and what is made of it, until the ranks are forked."""
    shutil.copy(ROOT / "rank_tables" / "rank_table_2pcs.json", tmp_path / TABLE.marker)
    (tmp_path / "program.py").write_text("print('begun')\n")
    options = ("--rank-table", TABLE.marker, "--console", "none")
    follow(TABLE, tmp_path, "run", *options, "--", sys.executable, "program.py")


def test_a_failure_to_the_printed_verdict(tmp_path):
    """Followed: the message of the exception that a rank ends with, its end, and the verdict."""
    first, second = MARKER.split()
    (tmp_path / "program.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        f"    raise ValueError(' '.join(['{first}', '{second}']))\n"
        "time.sleep(60)\n"
    )
    follow(FAILURE, tmp_path, "run", "--devices", "2", "--", sys.executable, "program.py", exit_code=1)


def test_a_line_to_logs_follow(tmp_path):
    """Followed: the text of a line that a rank writes while `logs --follow` waits for it."""
    first, second = MARKER.split()
    (tmp_path / "program.py").write_text(
        "import pathlib, time\n"
        "print('begun', flush=True)\n"
        "deadline = time.monotonic() + 60\n"
        "while not pathlib.Path('speak').exists() and time.monotonic() < deadline:\n"
        "    time.sleep(0.02)\n"
        f"print('{first}', '{second}', flush=True)\n"
    )
    launcher = [sys.executable, "-m", "launcher"]
    run = subprocess.Popen(
        [*launcher, "run", "--devices", "1", "--console", "none", "--", sys.executable, "program.py"], cwd=tmp_path
    )
    try:
        log = tmp_path / "runs" / "latest" / "device0" / "train.log"
        while not (log.exists() and "begun" in log.read_text()):
            assert run.poll() is None
            time.sleep(0.02)
        with traced(LINE, tmp_path / "tracer", ["logs", "--follow"], tmp_path) as logs:
            assert "begun" in logs.stdout.readline()
            (tmp_path / "speak").touch()
            assert MARKER in logs.stdout.readline()
    finally:
        (tmp_path / "speak").touch()
        run.wait(timeout=60)
    assert logs.returncode == 0
    check_page(LINE, tmp_path / "tracer")


@pytest.mark.distributed
def test_a_batch_through_a_training_step(tmp_path):
    """Followed: sentences and tensors within `Session.train_step`, on two stages of two model-parallel ranks."""
    layout = ("--devices", "4", "--mp", "2", "--pp", "2", "--micro-batches", "2")
    follow(BATCH, tmp_path, "run", *layout, "--set", "train.steps=1", "--set", "train.translations=0")
