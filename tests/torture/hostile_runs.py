"""Change one thing in a run's directory and call commands that read it: `python -m tests.torture.hostile_runs FIRST LAST`.

Each seed changes one value of one JSON file, or puts something else in the place of one file. Each command runs in a
process of its own, with limits. Prints each fault and the figures of all calls; exits with 1 if there was a fault.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from launcher.checkpoint.index import INDEX
from tests import checkpoints
from tests.cli.in_process import call

CPU_S, MEMORY_BYTES = 5, 200 << 20  # the most that a command may take
HANGS_S = 30  # wall clock, on a machine that others use too
ADDRESS_SPACE_BYTES = 2 << 30  # so that a fault does not take the machine's memory
RUN = "20260101-000000-hostile"

COMMANDS = (
    "ps --all", f"status {RUN}", f"stop --timeout 1 {RUN}", "prune --keep 0 --dry-run", f"report {RUN}", f"why {RUN}",
    f"logs {RUN}", f"ckpt ls {RUN}", f"wait --timeout 1 {RUN}",
)  # fmt: skip
MORE_COMMANDS = (  # of which each seed calls two
    "ps --all --json", f"status --json {RUN}", f"report --json {RUN}", f"report --html page.html {RUN}",
    f"logs --tail 3 --merge {RUN}", f"logs --errors {RUN}", f"logs --tail 3 {RUN}", f"logs --timestamps --json {RUN}",
    f"rerun --dry-run {RUN}", f"top {RUN}", f"stacks {RUN}", f"ckpt ls --json {RUN}", f"logs --env {RUN}",
)  # fmt: skip
OURS = "/launcher/cli/main.py"  # in a traceback of the command itself

# --- values that no run writes ---

DEEP = "[" * 100_000 + "]" * 100_000
VALUES: tuple[str, ...] = (
    "null", "true", "false", "0", "-1", "1.5", "-0.0", "1e999", "-1e999", "NaN", "1e308", str(1 << 62), str(-(1 << 63)),
    str(1 << 64), "9" * 4000, '""', '"x"', '"\\ud800"', '"\\u0000/etc"', '"\\u001b[2J\\u202e"', '"../../../etc/passwd"',
    json.dumps("x" * 1_000_000), "[]", "{}", "[[]]", '{"": null}', json.dumps([0] * 100_000), DEEP,
    json.dumps({str(number): number for number in range(50_000)}), '[null, 1e999, "x"]',
)  # fmt: skip
MARK = "a place for a hostile value"

# --- files that no run makes ---


def _sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 8 << 30)


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


def _filled(content: Callable[[], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content())


def _events(count: int, name: str, rest: str = "") -> Callable[[Path], object]:
    """Return a function that writes a file of so many events; `rest` holds their fields, with %d for a number."""
    line = f'{{"schema": 2, "time_ns": 1, "server_index": 0, "event": "{name}"{rest}}}\n'
    return _filled(lambda: "".join(line.replace("%d", str(number)) for number in range(count)).encode())


FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a directory": Path.mkdir,
    "8 GiB of nothing": _sparse,
    "an empty file": Path.touch,
    **{
        f"a link to {target}": partial(lambda target, path: path.symlink_to(target), target)
        for target in ("/dev/zero", "/dev/ptmx", "/dev/kmsg", "/proc/kmsg", "/dev/tty", "/nowhere", "/", "/proc/self/mem")
    },
    "a link to itself": lambda path: path.symlink_to(path.name),
    "deep JSON": _filled(lambda: b'{"schema": 2, "x": ' + DEEP.encode() + b"}\n"),
    "60 MB of empty lists": _filled(lambda: b'{"schema": 2, "ranks": [' + b"[]," * 20_000_000 + b"[]]}\n"),
    "60 MB in one line": _filled(lambda: b"x" * 60_000_000),
    "300,000 short lines": _filled(lambda: b"1\n" * 300_000),
    "lines of a training": _filled(lambda: b"".join(b"step %d loss 0.5\n" % number for number in range(600_000))),
    "30 MB of NUL": _filled(lambda: bytes(30_000_000)),
    "random bytes": _filled(lambda: random.Random(0).randbytes(3_000_000)),
    "many events": _events(400_000, "Continued"),
    "many attempts": _events(300_000, "AttemptStarted", ', "number": %d, "master_port": 1'),
    "UTF-16": _filled(lambda: '{"schema": 2}'.encode("utf-16")),
}  # fmt: skip
NAMES = (
    "run.json", "events.jsonl", "report.json", "metrics.jsonl", "server0/events.jsonl", "endpoint.json", "console.log",
    "agent.log", "device0", "device0/train.log", "device0/heartbeat", "device0/failure.json", "device0/arrivals",
    "device0/process.json", "device0/stacks.log", "checkpoints", f"checkpoints/step-5/{INDEX}",
    "checkpoints/step-5/rank0.safetensors", "excluded", "scheduler/scheduler.log", "strategy/rank0.json",
)  # fmt: skip

# --- runs as they are ---

STEPS = "import sys\nfor step in range(30): print('step', step, 'loss', 1 / (step + 1))\n"
FAILS = STEPS + "import os\nif os.environ['RANK'] == '1': raise ValueError('no')\nimport time\ntime.sleep(30)\n"
KEPT = ("whole", "failed", "broken off", "one server's", "an engine's")


def make_runs(folder: Path) -> None:
    """Make a run of each kind, with all files that a run may have."""
    for kind, program in {"whole": STEPS, "failed": FAILS}.items():
        options = [
            "--devices",
            "2",
            "--max-restarts",
            "1",
            "--grace",
            "1",
            "--name",
            "made",
            "--runs-dir",
            str(folder / "made"),
        ]
        command = [sys.executable, "-m", "launcher", "run", "-q", *options, "--", sys.executable, "-c", program]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        next((folder / "made").glob("2*")).rename(folder / kind)
        shutil.rmtree(folder / "made")
        _add_files(folder / kind)
    for kind in KEPT[2:]:
        shutil.copytree(folder / "failed", folder / kind)
    (folder / "broken off" / "report.json").unlink()
    events = (folder / "broken off" / "events.jsonl").read_text().splitlines(keepends=True)
    (folder / "broken off" / "events.jsonl").write_text("".join(events[:-2]))
    part = folder / "one server's" / "server0"
    part.mkdir()
    for name in ("events.jsonl", "report.json"):
        (folder / "one server's" / name).rename(part / name)
        (folder / "an engine's" / name).unlink()
    run_json = folder / "an engine's" / "run.json"
    run_json.write_text(json.dumps({**json.loads(run_json.read_text()), "engine": "mpirun"}))


def _add_files(run: Path) -> None:
    measured = {"time_ns": 1_795_894_126_882_586_556, "schema": 1, "attempt": 0}
    lines = [{**measured, "step": step, "loss": 1.0 / step, "tokens_per_s": 5.0, "step_s": 0.1} for step in range(1, 9)]
    lines += [{**measured, "step": 8, "validation_loss": 1.0, "bleu": 3.0}, {**measured, "step": 8, "saved": "step-8"}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "endpoint.json").write_text('{"addresses": [["127.0.0.1", 9]], "key": "key"}\n')
    agent = json.loads((run / "events.jsonl").read_text().splitlines()[0])["agent"]
    for rank in range(2):
        device = run / f"device{rank}"
        (device / "heartbeat").write_text('{"step": 3, "last_step": 30, "busy_s": 0.1, "loss": 0.5, "pid": 4711}\n')
        (device / "process.json").write_text(json.dumps(agent) + "\n")
        (device / "arrivals").write_bytes(b"".join(n.to_bytes(8, "little") for n in (10**18, 100, 10**18 + 10**9, 900)))
    shapes = {"a": (2, 3), "b": (4,)}
    checkpoints.write(run / "checkpoints" / "step-5", shapes, checkpoints.numbered(shapes))


# --- one change ---


def change(run: Path, chosen: random.Random) -> str:
    """Change one thing in a run's directory; return what."""
    if chosen.random() < 0.2:
        name, made = chosen.choice(NAMES), chosen.choice(list(FILES))
        path = run / name
        path.parent.mkdir(exist_ok=True)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        FILES[made](path)
        return f"{name} is {made}"
    found = [path for path in sorted(run.rglob("*")) if path.suffix in {".json", ".jsonl"} or path.name == "heartbeat"]
    path = chosen.choices(found, [1 + len(path.read_text().splitlines()) ** 0.5 for path in found])[0]
    lines = path.read_text().splitlines(keepends=True) if path.suffix == ".jsonl" else [path.read_text()]
    at = chosen.randrange(len(lines))
    document = json.loads(lines[at])
    holder, key = chosen.choice(list(_places(document["index"] if path.name == INDEX else document)))
    value = chosen.choice(VALUES)
    holder[key] = MARK
    lines[at] = (
        _indexed(document["index"], value)
        if path.name == INDEX
        else json.dumps(document).replace(json.dumps(MARK), value) + "\n"
    )
    path.write_text("".join(lines), encoding="utf-8", errors="surrogatepass")
    return f"{path.relative_to(run)}, line {at + 1}: {key!r} is {value[:40]}"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(each, dict | list):
            yield from _places(each)


def _indexed(index: Any, value: str) -> str:
    text = json.dumps(index).replace(json.dumps(MARK), value)
    return f'{{"sha256": "{hashlib.sha256(text.encode()).hexdigest()}", "index": {text}}}\n'


# --- one call ---


@dataclass
class Called:
    """A call of a command, and what it took."""

    words: list[str]
    faults: list[str]
    cpu_s: float
    memory_bytes: int
    said: str


def called(words: list[str], folder: Path) -> Called:
    """Call a command in a process of its own."""
    output = folder / "output"
    pid = os.fork()
    if pid == 0:
        status = 2
        try:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
            signal.setitimer(signal.ITIMER_REAL, HANGS_S)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            environment = {
                "PATH": os.environ["PATH"],
                "XDG_STATE_HOME": str(folder / "state"),
                "TLAUNCH_RUNS_DIR": "runs",
            }
            with output.open("w+b") as file:
                done = call(words, cwd=folder, env=environment, encoding=None, stdout=file, stderr=file)
            status = done.returncode & 0xFF
        finally:
            os._exit(status)
    _, status, used = os.wait4(pid, 0)
    said = _end_of(output)
    cpu_s, memory_bytes = used.ru_utime + used.ru_stime, used.ru_maxrss << 10
    faults = []
    if os.WIFSIGNALED(status):
        faults.append("hangs" if os.WTERMSIG(status) == signal.SIGALRM else f"killed by signal {os.WTERMSIG(status)}")
    if OURS in said:
        faults.append("traceback")
    if cpu_s > CPU_S:
        faults.append(f"{cpu_s:.1f} s of processor time")
    if memory_bytes > MEMORY_BYTES:
        faults.append(f"{memory_bytes >> 20} MB")
    return Called(words, faults, cpu_s, memory_bytes, said)


def _end_of(output: Path) -> str:
    with suppress(OSError), output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - (1 << 16)))
        return file.read().decode(errors="replace")
    return ""


def play(seed: int, made: Path) -> Iterator[tuple[str, Called]]:
    """Yield each call of a seed, with what was changed."""
    chosen = random.Random(seed)
    kind = chosen.choice(KEPT)
    folder = Path(tempfile.mkdtemp(prefix=f"hostile-{seed}-"))
    try:
        shutil.copytree(made / kind, folder / "runs" / RUN)
        changed = f"{kind}: {change(folder / 'runs' / RUN, chosen)}"
        for line in (*COMMANDS, *chosen.sample(MORE_COMMANDS, 2)):
            yield changed, called(line.split(), folder)
    finally:
        shutil.rmtree(folder)


def _warm_up(made: Path) -> None:
    """Load what the commands load, once for all processes that are forked."""
    shutil.copytree(made / "failed", made / "runs" / RUN)
    environment = {"PATH": os.environ["PATH"], "TLAUNCH_RUNS_DIR": "runs", "XDG_STATE_HOME": str(made / "state")}
    for line in (*COMMANDS, *MORE_COMMANDS):
        call(line.split(), cwd=made, env=environment, encoding=None)


def main() -> int:
    first, last = map(int, sys.argv[1:3])
    calls, faults, slowest, largest = 0, 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="hostile-made-") as name:
        make_runs(Path(name))
        _warm_up(Path(name))
        for seed in range(first, last):
            for changed, done in play(seed, Path(name)):
                calls, slowest, largest = calls + 1, max(slowest, done.cpu_s), max(largest, done.memory_bytes)
                if done.faults:
                    faults += 1
                    what = f"seed {seed}: {changed}: tlaunch {' '.join(done.words)}: {', '.join(done.faults)}"
                    print(f"{what}\n{done.said[-1500:]}", flush=True)
    print(f"{last - first} directories, {calls} calls, {faults} faults; at most {slowest:.1f} s and {largest >> 20} MB")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
