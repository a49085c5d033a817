"""Processes of the trainer that translate, one for each device, and the lines that they share.

a thread   reads lines                  ──>  events  ──>  here: requests of some lines to whoever is free,
a thread   for each process, its answers ──>                    translations in the order of the lines
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from launcher.cli.text.stdout import say
from launcher.cli.training.text_lines import Line
from launcher.cli.training.trainer_process import check_installed, started
from launcher.core.codec import decode, encode
from launcher.core.errors import EXIT_OK, TlaunchError, exit_code_of
from launcher.core.frozen import frozen
from launcher.core.text import printable
from launcher.recipes.transformer.translation import (
    ANSWER_MARK,
    MAX_SENTENCES,
    MODULE,
    Ready,
    Request,
    Scores,
    Scoring,
    Sentences,
    Translations,
)

MIN_SENTENCES = 64  # of a request, where so many wait: fewer make batches that are too small
LINES_AHEAD = 8 * MAX_SENTENCES  # that are read for each process before they are written
THREADS = "OMP_NUM_THREADS"

Kind = TypeVar("Kind")


@frozen
class Decoding:
    """The settings of a search for translations, and the number of devices."""

    beam: int
    alpha: float
    batch_tokens: int
    devices: int
    device: str  # "auto" or "cpu"


@frozen
class Translated:
    line: Line
    text: str
    cut_tokens: int


@frozen
class _Answered:
    worker: _Worker
    text: str | None  # None: the process has ended


@frozen
class _Ended:
    error: BaseException | None


_Event = Line | _Answered | _Ended


@contextmanager
def translators(model: Path, how: Decoding, *, scores: bool = False) -> Iterator[Translators]:
    """Give processes that have loaded the model, and end them afterwards. `scores`: scores will be asked for, too.

    Raises:
        UnreadableError: a package that they need is not installed.
        TlaunchError: a process has ended; it has said itself why.
    """
    check_installed()
    words = [
        *(str(model), "--beam", str(how.beam), "--alpha", str(how.alpha), "--device", how.device),
        *("--batch-tokens", str(how.batch_tokens), *["--scores"] * scores),
    ]
    # Threads of several processes on the same cores would wait for each other.
    share = {THREADS: str(max(1, _usable_cpus() // how.devices))}
    variables = share if how.devices > 1 and THREADS not in os.environ else {}
    events: SimpleQueue[_Event] = SimpleQueue()
    with ExitStack() as processes:
        workers = [
            _Worker(
                processes.enter_context(
                    started(MODULE, *words, "--index", str(index), stdin=subprocess.PIPE, variables=variables)
                ),
                events,
            )
            for index in range(how.devices)
        ]
        yield Translators(workers, events)


class _Worker:
    """A process, and the numbers of the lines that it was asked for last."""

    def __init__(self, process: subprocess.Popen[str], events: SimpleQueue[_Event]) -> None:
        self._process = process
        self.asked: Sequence[int] = ()
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def ask(self, request: Request) -> None:
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(json.dumps(encode(request)) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # its end is an event, which says more
            pass

    def error(self) -> TlaunchError:
        """Return the error of a process that has ended too early."""
        status = self._process.wait()
        if status < 0:
            error = TlaunchError(
                f"the process that translates was ended by {signal.Signals(-status).name}",
                hint="if memory does not suffice: a smaller --batch-tokens or --beam",
            )
        else:
            error = TlaunchError(f"the process that translates has ended with {status}")
            error.is_reported = status != EXIT_OK  # by itself
        error.exit_code = exit_code_of(status) or TlaunchError.exit_code
        return error

    def _read(self, events: SimpleQueue[_Event]) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            if line.startswith(ANSWER_MARK):
                events.put(_Answered(self, line.removeprefix(ANSWER_MARK)))
            else:  # a package that it imports, or sitecustomize, has written it
                say(printable(line.rstrip("\n")))
        events.put(_Answered(self, None))


class Translators:
    def __init__(self, workers: Sequence[_Worker], events: SimpleQueue[_Event]) -> None:
        """Wait until the model is loaded everywhere."""
        self._workers, self._events = workers, events
        self.ready = [self._answer(Ready) for _ in workers]
        self._free = deque(workers)

    def translate(self, lines: Iterable[Line]) -> Iterator[list[Translated]]:
        """Yield the translations of lines in their order, as soon as there are some; blank lines have empty ones.

        Raises:
            TlaunchError: a process has ended; or what `lines` raises, once the lines before are yielded.
        """
        places = threading.Semaphore(LINES_AHEAD * len(self._workers))
        threading.Thread(target=self._read, args=(lines, places), daemon=True).start()
        read: dict[int, Line] = {}
        waiting: deque[int] = deque()
        done: dict[int, Translated] = {}
        count = given = 0
        ended: _Ended | None = None
        while ended is None or given < count:
            event = self._events.get()
            if isinstance(event, Line):
                if event.text.strip():
                    read[count] = event
                    waiting.append(count)
                else:
                    done[count] = Translated(event, "", 0)
                count += 1
            elif isinstance(event, _Ended):
                ended = event
            else:
                found = _answer_of(event, Translations)
                for number, text, cut in zip(event.worker.asked, found.translations, found.cut_tokens, strict=True):
                    done[number] = Translated(read.pop(number), text, cut)
                self._free.append(event.worker)
            if not self._events.empty():  # so that requests are large where lines come quickly
                continue
            self._ask(waiting, read)
            together = []
            while given in done:
                together.append(done.pop(given))
                given += 1
            if together:
                places.release(len(together))
                yield together
        if ended.error is not None:
            raise ended.error

    def scores(self, hypotheses: Sequence[str], references: Sequence[str]) -> Scores:
        """Return the scores of translations, of which one process computes all."""
        self._workers[0].ask(Scoring(tuple(hypotheses), tuple(references)))
        return self._answer(Scores)

    def _ask(self, waiting: deque[int], read: dict[int, Line]) -> None:
        while waiting and self._free:
            worker = self._free.popleft()
            share = max(MIN_SENTENCES, -(-len(waiting) // len(self._workers)))
            worker.asked = [waiting.popleft() for _ in range(min(share, MAX_SENTENCES, len(waiting)))]
            worker.ask(Sentences(tuple(read[number].text for number in worker.asked)))

    def _read(self, lines: Iterable[Line], places: threading.Semaphore) -> None:
        try:
            for line in lines:
                places.acquire()
                self._events.put(line)
        except BaseException as error:  # noqa: BLE001 - raised again where the lines are used
            self._events.put(_Ended(error))
        else:
            self._events.put(_Ended(None))

    def _answer(self, kind: type[Kind]) -> Kind:
        event = self._events.get()
        assert isinstance(event, _Answered), "no lines are read meanwhile"
        return _answer_of(event, kind)


def _answer_of(event: _Answered, kind: type[Kind]) -> Kind:
    if event.text is None:
        raise event.worker.error()
    answer: Any = json.loads(event.text)
    return decode(kind, answer)


def _usable_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
