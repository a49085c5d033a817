"""What a person sees while a run goes on: lines of a few ranks on stdout, everything else on stderr."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launcher.cli.progress import Progress
from launcher.cli.summary import describe, ranks
from launcher.core.events import Cause, Stamped, Stopping, Trouble
from launcher.core.records import RunSpec
from launcher.core.run_dir import RunDir
from launcher.logs.follow import Follower

# Where the status cannot be redrawn in place, it is repeated at most this often.
STATUS_EVERY_S = 1.0
LINES_AT_ONCE = 1000  # bounds memory when a large rest is shown


class Console:
    """Observes one run. A stdout or stderr that nobody reads any more is forgotten; the run goes on."""

    def __init__(self, spec: RunSpec) -> None:
        self.progress = Progress(len(spec.ranks))
        self.shown_dir = as_people_call_it(spec.run_dir)
        self._spec = spec
        run_dir = RunDir(spec.run_dir)
        self._follower = Follower({rank: run_dir.train_log(rank) for rank in spec.console_ranks})
        self._prefixed = len(spec.console_ranks) > 1
        self._status = _StatusLine(sys.stderr)

    # --- launcher.engines.attend.Observer ---

    def event(self, stamped: Stamped) -> None:
        self.progress.take(stamped)
        match stamped.event:
            case Stopping(cause=Cause.AGENT_LOST):
                self.say("the supervising process is gone; ending everything that it left behind")
            case Trouble(message=message):
                self.say(f"warning: {message}")
            case _:
                pass

    def interrupted(self, number: int, *, at_once: bool) -> None:
        if at_once:
            self.say("killing all ranks")
        else:
            again = "; Ctrl-C again kills them at once" if number == signal.SIGINT else ""
            name = signal.Signals(number).name
            self.say(f"{name}: ending all ranks within {self._spec.grace_s:g} s{again}")

    def tick(self) -> None:
        self._show(self._follower.poll())
        self._status.show(self._status_text())

    # --- the rest ---

    def finish(self, closing_lines: Callable[[], Iterable[str]]) -> None:
        """When nothing runs any more: the rest of the logs (Ctrl-C skips them), then the closing words."""
        with suppress(KeyboardInterrupt):
            self._show(self._follower.rest())
        self._follower.close()
        for line in closing_lines():
            self.say(line)

    def say(self, line: str) -> None:
        self._status.erase()
        with suppress(OSError, ValueError):  # nobody reads stderr any more
            print(line, file=sys.stderr, flush=True)

    def _status_text(self) -> str:
        """Empty while there is nothing worth a line: nothing started yet, nothing left."""
        started, running, total = len(self.progress.started_ns), self.progress.running, self.progress.rank_count
        if not running or (started < total and self.progress.stopping is None):
            return ""
        if self.progress.stopping is not None:
            return f"{self._why_ending()}{ranks(running)} of {total} to end, killed if they take too long"
        return (
            f"{ranks(total)} started in {self.shown_dir}" if running == total else f"{running} of {total} ranks running"
        )

    def _why_ending(self) -> str:
        failed = self.progress.first_failure
        return "" if failed is None else f"rank {failed.global_rank} failed ({describe(failed)}); "

    def _show(self, lines: Iterable[tuple[int, str]]) -> None:
        shown = (f"[{rank}] {line}\n" if self._prefixed else f"{line}\n" for rank, line in lines)
        while text := "".join(itertools.islice(shown, LINES_AT_ONCE)):
            self._status.erase()
            write_out(text)


class _StatusLine:
    """One line about the run: redrawn in place on a terminal, printed when it changes elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._on_terminal = stream.isatty()
        self._shown = ""
        self._visible = False
        self._next_s = 0.0

    def show(self, text: str) -> None:
        if self._on_terminal:
            if text != self._shown or not self._visible:
                self.erase()
                self._write(text[: shutil.get_terminal_size().columns - 1])
                self._visible = bool(text)
                self._shown = text
        elif text and text != self._shown and time.monotonic() >= self._next_s:
            self._write(text + "\n")
            self._shown = text
            self._next_s = time.monotonic() + STATUS_EVERY_S

    def erase(self) -> None:
        if self._visible:
            self._write("\r\x1b[K")
            self._visible = False

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def write_out(text: str) -> None:
    """Write to stdout; once its reader has gone, to nowhere."""
    try:
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def as_people_call_it(path: Path) -> Path:
    """Relative to the working directory where that is shorter."""
    relative = Path(os.path.relpath(path))
    return path if relative.parts[:1] == ("..",) else relative
