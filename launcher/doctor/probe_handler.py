"""The server's side of an examination: it does what it is told, one message after another, and knows no transport.

Messages and answers are JSON objects:

{"do": "collect", "request": {...}}                              -> {"facts": {...}}
{"do": "listen", "server": 1, "secret": "..."}                   -> {"port": 40123}
{"do": "reach", "targets": [...], "secret": "...", "timeout_s"}  -> {"attempts": [...]}
{"do": "links", "run_dir": "..."}                                -> {"links": {...}}
{"do": "forget", "runs_dir": "...", "parent": true}              -> {"forgotten": true}

Where servers are started by hand, the command itself takes one more: {"do": "measure", ...}, a part of the run above.

What cannot be done is answered by {"trouble": "why"}. Unknown fields are of a later version, and are overlooked.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.core.run_dir import RunDir
from launcher.doctor.collect import collect
from launcher.doctor.dns import RESOLVE_S, resolve
from launcher.doctor.facts import Facts, Request, Resolved, flat_from_json, to_json
from launcher.doctor.listener import Listener
from launcher.doctor.reach import Target, try_reach

Message = Mapping[str, Any]
OWN_RUNS = ".doctor-"  # how the name of a directory begins that examinations make


def forget(runs_dir: Path, *, parent: bool) -> bool:
    """Remove a directory that an examination made for its own runs, and no other; with `parent` that one, if empty."""
    if not runs_dir.name.startswith(OWN_RUNS):
        return False
    shutil.rmtree(runs_dir, ignore_errors=True)
    if parent:
        with suppress(OSError):
            runs_dir.parent.rmdir()
    return not runs_dir.exists()


def _answer_of_trial(kind: Any, message: Message) -> dict[str, Any]:
    """About the run that measured links."""
    match kind:
        case "links":
            return {"links": json.loads(RunDir(Path(message["run_dir"])).links.read_text(encoding="utf-8"))}
        case "forget":
            return {"forgotten": forget(Path(message["runs_dir"]), parent=bool(message["parent"]))}
        case _:
            return {"trouble": f"unknown message {kind!r}: versions of tlaunch may differ"}


class ProbeHandler:
    """Keeps the listener between messages. Its owner calls `serve` when `fileno` is readable, -1 being no descriptor.

    Others may try to reach this server as long as theirs last: it is to be closed only when the head is done with all.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._resolutions: dict[str, Resolved] = {}  # of the names that were asked for

    def fileno(self) -> int:
        return -1 if self._listener is None else self._listener.fileno()

    def serve(self) -> None:
        if self._listener is not None:
            self._listener.serve()

    def close(self) -> None:
        """May be called again."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def answer(self, message: Message) -> dict[str, Any]:
        """Do what the message says. Blocks meanwhile, and raises nothing that a message could cause."""
        try:
            match message.get("do"):
                case "collect":
                    return {"facts": to_json(self._collect(message))}
                case "listen":
                    return {"port": self._listen(message)}
                case "reach":
                    return {"attempts": self._reach(message)}
                case kind:
                    return _answer_of_trial(kind, message)
        except (OSError, TypeError, ValueError, KeyError) as error:
            return {"trouble": f"{type(error).__name__}: {error}"}

    def _collect(self, message: Message) -> Facts:
        facts = collect(flat_from_json(Request, message["request"]))
        self._resolutions = {one.name: one for one in facts.resolved}
        return facts

    def _listen(self, message: Message) -> int:
        self.close()
        self._listener = Listener(int(message["server"]), str(message["secret"]))
        return self._listener.port

    def _reach(self, message: Message) -> list[Any]:
        timeout_s = float(message["timeout_s"])
        wanted = message["targets"]
        unknown = [str(one["host"]) for one in wanted if str(one["host"]) not in self._resolutions]
        resolutions = {**self._resolutions, **resolve(unknown, RESOLVE_S)}
        targets = [
            Target(
                int(one["server"]), str(one["host"]), resolutions[str(one["host"])].addresses, int(one["port"]),
                gets_large=bool(one.get("gets_large")),
            )
            for one in wanted
        ]  # fmt: skip
        attempts = try_reach(targets, str(message["secret"]), timeout_s, self._listener)
        return [to_json(attempt) for attempt in attempts]
