"""The paths of a run's files, and the rules for run names.

<runs-dir>/
    latest -> 20261121-053712-transformer
    20261121-053712-transformer/
        run.json          the RunSpec, with secrets masked
        settings.toml     all settings of the bundled trainer, for --config
        events.jsonl      the events of the run, one JSON object per line
        report.json       the outcome
        metrics.jsonl     measurements of the training (launcher/core/metrics.py)
        tensorboard/      the same as event files, for TensorBoard
        links.json        measured speed of the links between servers (launcher/trainer/links/)
        agent.log         a traceback, if the agent fails
        preload.log       output of modules while they are preloaded
        console.log       console output of a detached launcher
        announced         a byte, once a rank of an engine has printed the run's path (launcher/runs/engine_ranks.py)
        headline          the first failure of ranks started by an engine, as printed (launcher/preload/headline.py)
        device0/train.log, env.log
        device0/arrivals      growth of train.log over time (launcher/core/line_times.py)
        device0/process.json  the rank's process, if an engine started it (launcher/runs/engine_ranks.py)
        device0/heartbeat     the last heartbeat, if the program writes it (launcher/core/heartbeat.py)
        device0/failure.json  the exception that ended the rank (launcher/preload/failure.py)
        device0/stacks.log    Python stacks, one record per request
        device0/profile.json  some steps of the bundled trainer in torch's profiler (Chrome trace)
        device1/...
        scheduler/        scheduler.log and env.log of MindSpore's scheduler, if used (launcher/supervise/scheduler.py)
        strategy/rank0.json   each rank's operators, layouts and collectives (launcher/sharding/strategy_report.py)
        checkpoints/      of the bundled trainer (launcher/checkpoint/index.py)
        excluded          the devices that an elastic run does not use, one per line (launcher/supervise/exclusions.py)
        rank_table.1.json the rank table of an attempt on other devices
        model/            weights, configuration and tokenizer saved by the bundled trainer
    A run on several servers also has these files. The files above then cover all servers.
        engine.log        output of mpirun or srun
        endpoint.json         during the run: address and key for stack requests (launcher/cluster/stack_requests.py)
        server0/          that server's events.jsonl, report.json, agent.log, preload.log, console.log
        server1/...
    Without a shared disk, each server has a directory with its ranks' files. The launcher's has copies of all files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from launcher.core.frozen import frozen

DEFAULT_RUNS_DIR = Path("runs")
LATEST = "latest"
SETTINGS = "settings.toml"
MAX_NAME_BYTES = 255  # of a directory's name


def can_be_in_name(text: str) -> bool:
    return bool(text) and "/" not in text and text.isprintable()


def is_run_name(name: str) -> bool:
    """Return True if a run may have this name. `latest` and names that start with a dot are not allowed."""
    fits = can_be_in_name(name) and len(name.encode()) <= MAX_NAME_BYTES
    return fits and not name.startswith(".") and name != LATEST


class _Named:
    """A descriptor for a path in the run directory, or in the subdirectory of a server."""

    def __init__(self, name: str, *, is_servers: bool = False) -> None:
        self._name = name
        self._is_servers = is_servers

    def __get__(self, run_dir: RunDir, _kind: type[RunDir]) -> Path:
        if self._is_servers and run_dir.server_index is not None:
            return run_dir.root / f"server{run_dir.server_index}" / self._name
        return run_dir.root / self._name


def _of_rank(name: str) -> Callable[[RunDir, int], Path]:
    """Return a method that maps a rank to the path of its file `name`."""
    return lambda run_dir, global_rank: run_dir.root / f"device{global_rank}/{name}"


@frozen
class RunDir:
    root: Path
    server_index: int | None = None  # selects a server's files in a run on several servers

    run_json = _Named("run.json")
    settings = _Named(SETTINGS)
    engine_log = _Named("engine.log")
    endpoint = _Named("endpoint.json")
    metrics = _Named("metrics.jsonl")
    tensorboard = _Named("tensorboard")
    links = _Named("links.json")
    model = _Named("model")
    checkpoints = _Named("checkpoints")
    strategy = _Named("strategy")
    excluded = _Named("excluded")
    scheduler = _Named("scheduler")
    announced = _Named("announced")
    events = _Named("events.jsonl", is_servers=True)
    report = _Named("report.json", is_servers=True)
    agent_log = _Named("agent.log", is_servers=True)
    preload_log = _Named("preload.log", is_servers=True)
    console_log = _Named("console.log", is_servers=True)

    @property
    def scheduler_log(self) -> Path:
        return self.scheduler / "scheduler.log"

    device = _of_rank("")
    train_log = _of_rank("train.log")
    arrivals = _of_rank("arrivals")
    env_log = _of_rank("env.log")
    process = _of_rank("process.json")
    heartbeat = _of_rank("heartbeat")
    failure = _of_rank("failure.json")
    profile = _of_rank("profile.json")
    stacks_log = _of_rank("stacks.log")

    def strategy_of(self, global_rank: int) -> Path:
        return self.strategy / strategy_name(global_rank)


def strategy_name(global_rank: int) -> str:
    return f"rank{global_rank}.json"


def mark_of(attempt: int) -> bytes:
    """Return the line that marks the start of an attempt in a rank's log. The first attempt has no mark."""
    return b"--- attempt %d ---\n" % attempt
