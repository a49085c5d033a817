"""The ranks that somebody else's engine has started (`tlaunch exec`), by the processes that they noted themselves.

A rank becomes its program, and nobody notes how that ends. That it has ended can be seen all the same: on its own
machine its process is gone.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from launcher.core import atomic
from launcher.core.codec import decode
from launcher.core.proc import ProcessId
from launcher.core.run_dir import RunDir
from launcher.runs.record import Recorded


def note_process(run_dir: RunDir, global_rank: int, process: ProcessId) -> None:
    """Keep which process this rank is. Its program's is the same.

    Raises:
        OSError: it cannot be written.
    """
    atomic.write_text(run_dir.process(global_rank), json.dumps(asdict(process)) + "\n")


class EngineRanks:
    """Reads each note once, however often somebody looks."""

    def __init__(self, run_dir: RunDir, recorded: Recorded) -> None:
        self._run_dir = run_dir
        self._places = recorded.places
        self._noted: dict[int, ProcessId] = {}  # by global rank

    def look(self) -> Mapping[int, ProcessId]:
        """Return the processes noted by now, by global rank."""
        for place in self._places:
            if place.global_rank not in self._noted:
                with suppress(OSError, ValueError, TypeError, RecursionError):
                    fields = json.loads(self._run_dir.process(place.global_rank).read_bytes())
                    self._noted[place.global_rank] = decode(ProcessId, fields)
        return self._noted

    def ended(self, *, all_noted: bool) -> bool:
        """Return True if every rank has ended, as far as is known here, by the last look.

        `all_noted`: a rank without a note, on a server where others have one, did not start and will never write one.
        """
        # Of another machine nobody here can tell, but what ran on this one before its last start does no more.
        here = socket.gethostname()
        if not self._noted or not all(process.host == here and not process.lives for process in self._noted.values()):
            return False
        servers = {place.server_index for place in self._places if place.global_rank in self._noted}
        without = [place for place in self._places if place.global_rank not in self._noted]
        return not without or (all_noted and all(place.server_index in servers for place in without))
