"""The real command, in this process where it starts none, else in a subprocess; and what it left in the process list."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from launcher.core.events import from_line
from launcher.core.run_report import Report
from tests import servers
from tests.conftest import PATIENCE_S, pids_in

from .in_process import call
from .transcript import transcript

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
BEGINNING_BYTES = 1 << 20


def beginning(log):
    with log.open("rb") as file:
        return file.read(BEGINNING_BYTES).decode(errors="replace")


class Launcher:
    def __init__(self, directory, wait_until):
        self.directory = directory
        self._wait_until = wait_until
        self.runs = directory / "runs"
        self._started = []

    def argv(self, *arguments):
        return [sys.executable, "-m", "launcher", *map(str, arguments)]

    def run(self, *arguments, **options):
        return self.ended(self.argv(*arguments), **options)

    def shell(self, script, *arguments, **options):
        return self.ended(["bash", "-c", script, "bash", *self.argv(*arguments)], **options)

    def python(self, code, *arguments, **options):
        return self.ended([sys.executable, "-c", code, *map(str, arguments)], **options)

    def ended(self, argv, *, env=None, code=None, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8", "timeout": PATIENCE_S}
        environment = self.environment(env or {})
        done = subprocess.run(argv, env=environment, check=False, **{"cwd": self.directory, **pipes, **options})
        assert code in {None, done.returncode}, done
        return done

    def call(self, *arguments, env=None, input=None, code=None, **options):  # noqa: A002 - as subprocess.run calls it
        typed = list(map(str, arguments))
        done = call(typed, env=self.environment(env or {}), given=input, **{"cwd": self.directory, **options})
        assert code in {None, done.returncode}, done
        return done

    def seen(self, *arguments, **variables):
        """What a terminal shows of stdout, with its colours; `variables` are in the environment."""
        parent, child = pty.openpty()
        with os.fdopen(child, "wb") as stdout:
            clean = {"TERM": "xterm", "NO_COLOR": "", "FORCE_COLOR": "", "COLUMNS": "200"}
            self.call(*arguments, env={**clean, **variables}, stdout=stdout)
        shown = read_until(parent, None)
        os.close(parent)
        return shown.decode().replace("\r\n", "\n")

    def transcript(self, *done):
        return transcript(*done, directory=self.directory)

    def scene(self, *commands, code=None, **options):
        """The transcript of commands, each typed as one text or given as words; all end with `code`, if there is one."""
        words = [shlex.split(each) if isinstance(each, str) else each for each in commands]
        return self.transcript(*(self.call(*each, code=code, **options) for each in words))

    def refused(self, code, *commands, **options):
        before = sorted(self.directory.rglob("*"))
        told = self.scene(*commands, code=code, **options)
        assert all(line.startswith(("$ ", "! ", "[")) or not line for line in told.splitlines()), told
        assert "Traceback" not in told
        assert sorted(self.directory.rglob("*")) == before
        return told

    def write(self, name, text="", **options):
        path = self.directory / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text, indent=1), **options)
        return path

    def start(self, *arguments, **options):
        return self.begin(self.argv(*arguments), **options)

    def begin(self, argv, *, env=None, **options):
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        environment = self.environment(env or {})
        process = subprocess.Popen(argv, cwd=self.directory, env=environment, **{**silent, **options})
        self._started.append(process)
        return process

    def running(self, *arguments, ranks=2, **options):
        process = self.start("run", "--devices", ranks, *arguments, **options)
        self.wait_ready(ranks)
        return process

    def stubborn(self, *wishes, grace, **options):
        """As `running`; the wishes say what ranks do against their end."""
        return self.running("--grace", grace, "--", sys.executable, PROGRAMS / "stubborn.py", *wishes, **options)

    def environment(self, changes):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("TLAUNCH_", "RANK"))}
        own = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        return {**inherited, **own, "TLAUNCH_CACHE_DIR": os.environ["TLAUNCH_CACHE_DIR"], **changes}

    def wait_ready(self, ranks, marker="ready"):
        def all_ready():
            logs = [self.latest / f"device{rank}" / "train.log" for rank in range(ranks)]
            return all(log.is_file() and marker in beginning(log) for log in logs)

        self._wait_until(all_ready, f"{marker} in all {ranks} logs")
        return self.latest.resolve()

    @property
    def latest(self):
        return self.runs / "latest"

    @property
    def report(self):
        return Report.from_json((self.latest / "report.json").read_text())

    def events(self, kind=object):
        path = self.latest / "events.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        return [event for line in lines if isinstance(event := from_line(line).event, kind)]

    def first(self, kind):
        return self._wait_until(lambda: self.events(kind), f"an event of {kind.__name__}")[0]

    @staticmethod
    def said_by(rank, lines):
        """What this rank says in these lines, by itself or among others, without prefixes."""
        found = [re.match(r"\[([\d,-]+)\] (.*)", line) for line in lines]
        return [each[2] for each in found if each and rank in _numbers(each[1])]

    def processes(self):
        return pids_in(self.runs)

    def close(self):
        """Kill what is left. Ranks may be left only where a launcher is still at work."""
        at_work = [process for process in self._started if process.poll() is None]
        survivors = [] if at_work else self.processes()
        for process in at_work:
            process.kill()
        for pid in self.processes():  # some hold pipes that are read to their ends
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()
        assert not survivors, f"ranks survive their launcher: {survivors}"


def read_until(descriptor, marker):
    shown = b""
    while marker is None or marker not in shown:
        assert select.select([descriptor], [], [], PATIENCE_S)[0], f"never shown: {marker}; but {shown}"
        try:
            chunk = os.read(descriptor, 4096)
        except OSError:  # EIO: the last process on the terminal has gone
            chunk = b""
        if not chunk:
            assert marker is None, shown
            break
        shown += chunk
    return shown


def _numbers(ranges):
    bounds = [part.split("-") for part in ranges.split(",")]
    return {number for bound in bounds for number in range(int(bound[0]), int(bound[-1]) + 1)}


@pytest.fixture
def launcher(tmp_path, wait_until):
    made = Launcher(tmp_path, wait_until)
    yield made
    made.close()


@pytest.fixture(scope="module")
def module_launcher(tmp_path_factory, wait_until):
    """For a run that many tests look at and none may harm."""
    made = Launcher(tmp_path_factory.mktemp("launcher"), wait_until)
    yield made
    made.close()


@pytest.fixture(scope="session")
def programs():
    return PROGRAMS


@pytest.fixture(scope="session")
def sample_tables():
    return PROGRAMS.parents[1] / "rank_tables"


@pytest.fixture
def umask():
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


@pytest.fixture
def table_of(launcher):
    return partial(servers.table_of, launcher.directory / "table.json")


@pytest.fixture(scope="session")
def report_fonts():
    """Draw once: matplotlib keeps the files of its fonts open."""
    from launcher.cli.commands.report.charts import Chart, Series
    from launcher.cli.commands.report.drawing import to_svg

    to_svg(Chart("a", (Series("a", ((1, 1.0),)),)))


class Script:
    def __init__(self, launcher):
        self.launcher = launcher
        self.path = launcher.directory / "run.sh"

    def render(self, *arguments):
        self.launcher.call("render", "bash", "--force", "-o", "run.sh", *arguments, code=0)

    def running(self, *arguments, ranks=2, **options):
        self.render("--devices", ranks, *arguments)
        process = self.start(**options)
        self.launcher.wait_ready(ranks)
        return process

    def start(self, *words, **options):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
        return self.launcher.begin(["bash", self.path, *words], **{**pipes, **options})

    def run(self, *words, env=None):
        return self.launcher.ended(["bash", self.path, *words], env=env, start_new_session=True)


@pytest.fixture
def script(launcher):
    return Script(launcher)
