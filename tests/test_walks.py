"""The walks of docs/internals/architecture.md list the files that real runs pass through."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import combinations, count
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILE = re.compile(r"`(launcher/[\w/]+\.py)`")
PAGE = ROOT / "docs" / "internals" / "architecture.md"
TRACER = ROOT / "tests" / "programs" / "walk" / "sitecustomize.py"
MARKER = "walked value"  # in the followed text
SPELT = "'walked' + ' value'"  # in programs under test, so that their source does not contain the marker


@dataclass(frozen=True)
class Walk:
    heading: str
    max_files: int
    marker: str = ""
    types: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    until: str | None = None
    within: str | None = None
    until_fork: int = 0
    numbers: tuple[tuple[int, ...], ...] | None = None


TABLE = Walk(
    "A rank table, from the command line to a forked rank", 36, "walked_table.json",
    ("Document", "Table", "Cluster", "RankSpec"), until_fork=2,
)  # fmt: skip
FAILURE = Walk(
    "A failure, from the exit of a rank to the printed verdict", 30, MARKER,
    ("Verdict", "RankEnded", "RankFailed", "RankExit"),
)  # fmt: skip
LINE = Walk("A line, from a rank to `logs -f`", 10, MARKER)
BATCH = Walk(
    "A batch, through a training step", 17, types=("Batch", "TokenizedPairs", "Tensor", "Tensors", "Parameter"),
    within="train_step",
)  # fmt: skip
CHECKPOINT = Walk(
    "A checkpoint, from save to resume on another layout", 20, types=("OwnedBox", "NamedBox", "PartFile", "Index")
)
STRATEGY = Walk(
    "A sharding strategy, from the setting to the collective", 28,
    types=("Partition", "ShardingPlan", "PlannedOperator", "Step", "ParameterSum", "Stage", "Group"),
    opaque=("World", "QuickstartSettings", "Training"), until="sum_gradients", numbers=((1, 2), (2, 1)),
)  # fmt: skip


def traced(walk, folder, command, cwd):
    """Start a tlaunch command whose processes record the functions that handle the value."""
    folder.mkdir(exist_ok=True)
    shutil.copy(TRACER, folder)
    (folder / "walk.json").write_text(json.dumps({"package": f"{ROOT / 'launcher'}/", **asdict(walk)}))
    return subprocess.Popen(
        [sys.executable, "-m", "launcher", *command], cwd=cwd, env={**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def contradicted(earlier, later, processes):
    """Return True if `later` came first: in all processes that recorded both, or in processes that ended before."""
    both = [noted for noted in processes if earlier in noted and later in noted]
    if both:
        return all(noted[later] < noted[earlier] for noted in both)
    began = min(min(noted.values()) for noted in processes if earlier in noted)
    return began > max(max(noted.values()) for noted in processes if later in noted)


def recorded(folder):
    seen = folder / "seen.txt"
    for line in seen.read_text().splitlines():
        process, path, function = line.split("\t")
        yield process, str(Path(path).relative_to(ROOT)), function
    seen.unlink()


def faults_of_page(walk, functions, processes):
    """Compare the list and the paragraph on helpers with the recorded files: each is named once, in order, and no other is."""
    section = PAGE.read_text("utf-8").partition(f"### {walk.heading}\n")[2].partition("\n##")[0]
    listed = FILE.findall("".join(re.findall(r"^\d+\. .*", section, re.MULTILINE)))
    named = listed + FILE.findall(section.partition("\nHelpers on this walk: ")[2].partition("\n\n")[0])
    assert len(listed) <= walk.max_files
    faults = {
        "rename or remove": [file for file in FILE.findall(section) if not (ROOT / file).is_file()],
        "add": [f"{file} (its {function}())" for file, function in functions.items() if file not in named],
        "remove": [file for file in dict.fromkeys(named) if named.count(file) != (file in functions)],
    }
    if not any(faults.values()):
        faults["exchange"] = [pair for pair in combinations(listed, 2) if contradicted(*pair, processes.values())]
    return {what: files for what, files in faults.items() if files}


def follow(walk, tmp_path, *commands, exit_code=0):
    """Run tlaunch commands to their end, and compare the page with the files that they passed through.

    Later commands count only for files that earlier ones did not pass through.
    """
    moments, processes = count(), {}
    for _ in range(3):  # files of a slow run, and the order of two files, may differ from run to run
        functions = {}
        for command in commands:
            process = traced(walk, tmp_path / "tracer", command, tmp_path)
            stdout, stderr = process.communicate(timeout=200)
            assert process.returncode == exit_code, stdout + stderr
            earlier = set(functions)
            for noted, file, function in recorded(tmp_path / "tracer"):
                functions.setdefault(file, function)
                if file not in earlier:
                    processes.setdefault(noted, {}).setdefault(file, next(moments))
        if not (faults := faults_of_page(walk, functions, processes)):
            break
    assert not faults, f"change the section '{walk.heading}' of {PAGE}: {faults}"


def test_a_rank_table_to_a_forked_rank(tmp_path):
    """Followed: the path of the table and the records made from it, until the ranks are forked."""
    shutil.copy(ROOT / "rank_tables" / "rank_table_2pcs.json", tmp_path / TABLE.marker)
    (tmp_path / "program.py").write_text("print('begun')\n")
    options = ("--rank-table", TABLE.marker, "--console", "none")
    follow(TABLE, tmp_path, ["run", *options, "--", sys.executable, "program.py"])


def test_a_failure_to_the_printed_verdict(tmp_path):
    """Followed: the message of a rank's exception, and its verdict. Ranks end slowly, so that the console reports it."""
    slow = "import os, signal, time\nsignal.signal(15, lambda *_: (time.sleep(2), os._exit(143)))\n"
    failing = f"if os.environ['RANK'] == '1':\n    raise ValueError({SPELT})\ntime.sleep(60)\n"
    (tmp_path / "program.py").write_text(slow + failing)
    follow(FAILURE, tmp_path, ["run", "--devices", "2", "--", sys.executable, "program.py"], exit_code=1)


def test_a_line_to_logs_follow(tmp_path):
    """Followed: the text of a line that a rank writes while `logs --follow` waits for it."""
    waits = "while not pathlib.Path('speak').exists() and time.monotonic() < deadline: time.sleep(0.02)"
    begins = f"import pathlib, time\nprint('begun', flush=True)\ndeadline = time.monotonic() + 60\n{waits}\n"
    speaks = f"print({SPELT} + '\\n', end='', flush=True)\n"  # in one write
    (tmp_path / "program.py").write_text(begins + speaks)
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
    functions = {file: function for _, file, function in recorded(tmp_path / "tracer")}
    moments = {file: moment for moment, file in enumerate(functions)}
    assert not faults_of_page(LINE, functions, {"logs": moments})


@pytest.mark.distributed
def test_a_batch_through_a_training_step(tmp_path):
    """Followed: sentences and tensors within `Session.train_step`, on two stages of two model-parallel ranks."""
    layout = ("--devices", "4", "--mp", "2", "--pp", "2", "--micro-batches", "2")
    follow(BATCH, tmp_path, ["run", *layout, "--set", "train.steps=1", "--set", "train.translations=0"])


@pytest.mark.distributed
def test_a_checkpoint_from_save_to_resume_on_another_layout(tmp_path):
    """Followed: boxes, files and the index of a checkpoint that dp=2 writes after step 1 and mp=2 resumes from."""

    def run(steps, *options):
        model = ("model.d_model=32", "model.feed_forward_dim=64")
        settings = (*model, f"train.steps={steps}", f"checkpoint.every_steps={steps}", "train.translations=0")
        return ["run", "--devices", "2", *options, *(word for each in settings for word in ("--set", each))]

    follow(CHECKPOINT, tmp_path, run(1), run(2, "--mp", "2", "--resume", "latest"))


@pytest.mark.distributed
def test_a_sharding_strategy_to_the_collective(tmp_path):
    """Followed: the strategy of one operator, the plan for all of them, and the groups of its collectives."""
    strategy = ("parallel.mode=semi_auto_parallel", "strategies.matmul=[[1, 2], [2, 1]]")
    settings = (*strategy, "train.steps=1", "checkpoint.enabled=false")
    options = [word for each in settings for word in ("--set", each)]
    follow(STRATEGY, tmp_path, ["run", "--recipe", "quickstart", "--devices", "2", *options])
