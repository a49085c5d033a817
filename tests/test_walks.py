"""The walks of docs/internals/architecture.md name the files that a real run takes."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"`(launcher/[\w/]+\.py)`")
PAGE = ROOT / "docs" / "internals" / "architecture.md"
TRACER = ROOT / "tests" / "programs" / "walk" / "sitecustomize.py"
MARKER = "walked value"  # in the text that is followed
SPELT = "'walked' + ' value'"  # in programs under test, none of which has it in one piece


@dataclass(frozen=True)
class Walk:
    """A walk: the heading of its section, what it follows, and how many files outside `core` it may take."""

    heading: str
    max_files: int
    marker: str = ""
    types: tuple[str, ...] = ()
    within: str | None = None
    until_fork: int = 0


TABLE = Walk(
    "A rank table, from the command line to a forked rank", 36, "walked_table.json",
    ("Document", "Table", "Cluster", "RankSpec"), until_fork=2,
)  # fmt: skip
FAILURE = Walk(
    "A failure, from the exit of a rank to the printed verdict", 35, MARKER,
    ("Verdict", "RankEnded", "RankFailed", "RankExit"),
)  # fmt: skip
LINE = Walk("A line, from a rank to `logs -f`", 20, MARKER)
BATCH = Walk(
    "A batch, through a training step",
    17,
    types=("Batch", "TokenizedPairs", "Tensor", "Tensors", "Parameter"),
    within="train_step",
)


def traced(walk, folder, command, cwd):
    """Start a command of tlaunch whose processes note what handles the value, and return it."""
    folder.mkdir(exist_ok=True)
    shutil.copy(TRACER, folder)
    (folder / "walk.json").write_text(json.dumps({"package": f"{ROOT / 'launcher'}/", **asdict(walk)}))
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *command], cwd=cwd, env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def contradicted(earlier, later, processes):
    """Whether processes noted `later` first: all of those that noted both, or, without any, before the others began."""
    both = [noted for noted in processes if earlier in noted and later in noted]
    if both:
        return all(noted[later] < noted[earlier] for noted in both)
    began = min(min(noted.values()) for noted in processes if earlier in noted)
    return began > max(max(noted.values()) for noted in processes if later in noted)


def check_page(walk, folder):
    """The list and the paragraph `Of core` name all files that were noted, once, and no other; return pairs out of order."""
    section = PAGE.read_text("utf-8").partition(f"### {walk.heading}\n")[2].partition("\n##")[0]
    listed = FILE.findall("".join(re.findall(r"^\d+\. .*", section, re.MULTILINE)))
    named = listed + FILE.findall(section.partition("\nOf core: ")[2].partition("\n\n")[0])
    functions, processes = {}, {}
    for moment, line in enumerate((folder / "seen.txt").read_text().splitlines()):
        process, path, function = line.split("\t")
        file = str(Path(path).relative_to(ROOT))
        functions.setdefault(file, function)
        processes.setdefault(process, {}).setdefault(file, moment)
    wrong = {
        "rename or remove": [file for file in FILE.findall(section) if not (ROOT / file).is_file()],
        "add": [f"{file} (its {function}())" for file, function in functions.items() if file not in named],
        "remove": [file for file in dict.fromkeys(named) if named.count(file) != (file in functions)],
    }
    assert not any(wrong.values()), f"change the section '{walk.heading}' of {PAGE}: {wrong}"
    assert len(listed) <= walk.max_files
    return [pair for pair in combinations(listed, 2) if contradicted(*pair, processes.values())]


def follow(walk, tmp_path, *command, exit_code=0):
    """Run a command of tlaunch to its end, and check the page against the files that it took."""
    for _ in range(3):  # which of two files a busy process takes first may differ from run to run
        process = traced(walk, tmp_path / "tracer", command, tmp_path)
        stdout, stderr = process.communicate(timeout=200)
        assert process.returncode == exit_code, stdout + stderr
        if not (late := check_page(walk, tmp_path / "tracer")):
            break
    assert not late, f"exchange in the section '{walk.heading}' of {PAGE}: {late}"


def test_a_rank_table_to_a_forked_rank(tmp_path):
    """Followed: the path of the table, and what is made of it, until the ranks are forked."""
    shutil.copy(ROOT / "rank_tables" / "rank_table_2pcs.json", tmp_path / TABLE.marker)
    (tmp_path / "program.py").write_text("print('begun')\n")
    options = ("--rank-table", TABLE.marker, "--console", "none")
    follow(TABLE, tmp_path, "run", *options, "--", sys.executable, "program.py")


def test_a_failure_to_the_printed_verdict(tmp_path):
    """Followed: the message of a rank's exception, and its verdict. Ends last so long that a busy console tells of them."""
    slow = "import os, signal, time\nsignal.signal(15, lambda *_: (time.sleep(2), os._exit(143)))\n"
    failing = f"if os.environ['RANK'] == '1':\n    raise ValueError({SPELT})\ntime.sleep(60)\n"
    (tmp_path / "program.py").write_text(slow + failing)
    follow(FAILURE, tmp_path, "run", "--devices", "2", "--", sys.executable, "program.py", exit_code=1)


def test_a_line_to_logs_follow(tmp_path):
    """Followed: the text of a line that a rank writes while `logs --follow` waits for it."""
    (tmp_path / "program.py").write_text(
        "import pathlib, time\n"
        "print('begun', flush=True)\n"
        "deadline = time.monotonic() + 60\n"
        "while not pathlib.Path('speak').exists() and time.monotonic() < deadline:\n"
        "    time.sleep(0.02)\n"
        f"print({SPELT} + '\\n', end='', flush=True)\n"  # in one write
    )
    options = ("--devices", "1", "--console", "none")
    argv = [sys.executable, "-m", "launcher", "run", *options, "--", sys.executable, "program.py"]
    run = subprocess.Popen(argv, cwd=tmp_path)
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
    assert not check_page(LINE, tmp_path / "tracer")


@pytest.mark.distributed
def test_a_batch_through_a_training_step(tmp_path):
    """Followed: sentences and tensors within `Session.train_step`, on two stages of two model-parallel ranks."""
    layout = ("--devices", "4", "--mp", "2", "--pp", "2", "--micro-batches", "2")
    follow(BATCH, tmp_path, "run", *layout, "--set", "train.steps=1", "--set", "train.translations=0")
