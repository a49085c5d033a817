"""Every path of a run, in one class, and the name of a run.

<runs-dir>/
    latest -> 20261121-053712-transformer
    20261121-053712-transformer/
        run.json          the RunSpec, secrets masked
        events.jsonl      what happened, one JSON object a line
        report.json       how it ended
        metrics.jsonl     what the training measures of itself (launcher/core/metrics.py)
        tensorboard/      the same as event files, for TensorBoard
        links.json        how fast servers reach each other, if measured (launcher/trainer/links/)
        agent.log         a traceback, if the supervision itself ever breaks
        preload.log       what modules print while they are imported for all ranks, if they do
        console.log       what a detached launcher would have shown
        announced         a byte once a rank that an engine started says where the run is (launcher/runs/engine_ranks.py)
        headline          the first failure among ranks that an engine started, as it was printed (launcher/preload/headline.py)
        device0/train.log, env.log
        device0/arrivals      when train.log had grown to how many bytes (launcher/core/line_times.py)
        device0/process.json  which process the rank is, where an engine started it (launcher/runs/engine_ranks.py)
        device0/heartbeat     a sign of life, rewritten by programs that take part (launcher/core/heartbeat.py)
        device0/failure.json  what the rank's own failure hook saw (launcher/preload/failure.py)
        device0/stacks.log    Python stacks, each time that they were asked for
        device0/profile.json  some steps of the bundled trainer, as torch's profiler saw them (Chrome trace)
        device1/...
        scheduler/        scheduler.log and env.log of MindSpore's scheduler, where ranks meet at one (launcher/supervise/scheduler.py)
        strategy/rank0.json   each rank's operators, layouts and collectives, if asked for (launcher/sharding/strategy_report.py)
        checkpoints/      of the bundled trainer (launcher/checkpoint/index.py)
        excluded          the devices that an elastic run leaves out, one a line (launcher/supervise/exclusions.py)
        rank_table.1.json what the ranks of an attempt on other devices read
        model/            weights, configuration and tokenizer that the bundled trainer leaves
    and of a run over several servers, where the files above tell of all of them,
        engine.log        what mpirun or srun said
        endpoint.json         during the run: where to ask all servers, and the key (launcher/cluster/stack_requests.py)
        server0/          that server's own events.jsonl, report.json, agent.log, preload.log, console.log
        server1/...
    Where servers share no disk, each has a directory of its own with its ranks' files, and the head's has copies of all.
"""

from __future__ import annotations

from pathlib import Path

from launcher.core.frozen import frozen

DEFAULT_RUNS_DIR = Path("runs")
LATEST = "latest"
MAX_NAME_BYTES = 255  # of a directory's name


def can_be_in_name(text: str) -> bool:
    """Return whether `text` can be part of a directory's name."""
    return bool(text) and "/" not in text and text.isprintable()


def is_run_name(name: str) -> bool:
    """Return whether a directory in the runs directory can have this name; hidden ones and `latest` are not runs."""
    fits = can_be_in_name(name) and len(name.encode()) <= MAX_NAME_BYTES
    return fits and not name.startswith(".") and name != LATEST


class _Named:
    """A path by its name in a run's directory, or in the part of it that is a server's own."""

    def __init__(self, name: str, *, is_servers: bool = False) -> None:
        self._name = name
        self._is_servers = is_servers

    def __get__(self, run_dir: RunDir, _kind: type[RunDir]) -> Path:
        if self._is_servers and run_dir.server_index is not None:
            return run_dir.root / f"server{run_dir.server_index}" / self._name
        return run_dir.root / self._name


@frozen
class RunDir:
    root: Path
    server_index: int | None = None  # whose own files are meant, where there are several servers

    run_json = _Named("run.json")
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

    def device(self, global_rank: int) -> Path:
        return self.root / f"device{global_rank}"

    def train_log(self, global_rank: int) -> Path:
        return self.device(global_rank) / "train.log"

    def arrivals(self, global_rank: int) -> Path:
        return self.device(global_rank) / "arrivals"

    def env_log(self, global_rank: int) -> Path:
        return self.device(global_rank) / "env.log"

    def process(self, global_rank: int) -> Path:
        return self.device(global_rank) / "process.json"

    def heartbeat(self, global_rank: int) -> Path:
        return self.root / f"device{global_rank}/heartbeat"  # one step: made for every rank of thousands

    def failure(self, global_rank: int) -> Path:
        return self.device(global_rank) / "failure.json"

    def profile(self, global_rank: int) -> Path:
        return self.device(global_rank) / "profile.json"

    def strategy_of(self, global_rank: int) -> Path:
        return self.strategy / strategy_name(global_rank)

    def stacks_log(self, global_rank: int) -> Path:
        return self.device(global_rank) / "stacks.log"


def strategy_name(global_rank: int) -> str:
    """Return the name of a rank's strategy report in the directory of all."""
    return f"rank{global_rank}.json"


def mark_of(attempt: int) -> bytes:
    """Return the line in a rank's log that begins the output of `attempt`, newline included. Attempt 0 is not marked."""
    return b"--- attempt %d ---\n" % attempt
