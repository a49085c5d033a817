"""The server's part of an examination: it handles one message after another, independently of the transport.

Messages and answers are JSON objects:

{"do": "collect", "request": {...}}                              -> {"facts": {...}}
{"do": "listen", "server": 1, "secret": "..."}                   -> {"port": 40123}
{"do": "reach", "targets": [...], "secret": "...", "timeout_s"}  -> {"attempts": [...]}
{"do": "links", "run_dir": "..."}                                -> {"links": {...}}
{"do": "forget", "runs_dir": "...", "parent": true}              -> {"forgotten": true}

If servers are started by hand, the command handles one more message: {"do": "measure", ...}.

A failure is answered by {"trouble": "why"}. Unknown fields of newer versions are ignored.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.core.codec import decode, encode, read_json
from launcher.core.run_dir import RunDir
from launcher.doctor.collect import collect
from launcher.doctor.facts import Request, Resolved
from launcher.doctor.listener import Listener
from launcher.doctor.network_facts import RESOLVE_S, resolve
from launcher.doctor.reach import Target, try_reach

Message = Mapping[str, Any]
OWN_RUNS = ".doctor-"  # prefix of directories that examinations create


def forget(runs_dir: Path, *, parent: bool) -> bool:
    """Remove the runs directory of an examination. With `parent=True`, also remove an empty parent directory.

    Returns whether the directory is removed. Directories that no examination created are not touched.
    """
    if not runs_dir.name.startswith(OWN_RUNS):
        return False
    shutil.rmtree(runs_dir, ignore_errors=True)
    if parent:
        with suppress(OSError):
            runs_dir.parent.rmdir()
    return not runs_dir.exists()


class ProbeHandler:
    """Handles the messages of an examination on one server. Call `serve` when `fileno` becomes readable.

    Other servers may try to reach this one even after it has answered, so close it only when the launcher is done.
    """

    def __init__(self) -> None:
        self._listener: Listener | None = None
        self._resolved: dict[str, Resolved] = {}  # the requested names

    def fileno(self) -> int:
        return -1 if self._listener is None else self._listener.fileno()

    def serve(self) -> None:
        if self._listener is not None:
            self._listener.serve()

    def close(self) -> None:
        """Stop listening. Idempotent."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def answer(self, message: Message) -> dict[str, Any]:
        """Execute the request in a message, and return the answer. An error is returned as an answer, too."""
        try:
            match message.get("do"):
                case "collect":
                    facts = collect(decode(Request, message["request"]))
                    self._resolved = {one.name: one for one in facts.resolved}
                    found = {"facts": encode(facts)}
                case "listen":
                    self.close()
                    self._listener = Listener(int(message["server"]), str(message["secret"]))
                    found = {"port": self._listener.port}
                case "reach":
                    found = {"attempts": self._reach(message)}
                case "links":
                    found = {"links": read_json(RunDir(Path(message["run_dir"])).links)}
                case "forget":
                    found = {"forgotten": forget(Path(message["runs_dir"]), parent=bool(message["parent"]))}
                case kind:
                    found = {"trouble": f"unknown message {kind!r}: versions of tlaunch may differ"}
        except (OSError, TypeError, ValueError, KeyError) as error:
            return {"trouble": f"{type(error).__name__}: {error}"}
        return found

    def _reach(self, message: Message) -> Any:
        wanted = [decode(Target, one) for one in message["targets"]]
        unknown = [one.host for one in wanted if one.host not in self._resolved]
        resolved = {**self._resolved, **resolve(unknown, RESOLVE_S)}
        targets = [replace(one, addresses=resolved[one.host].addresses) for one in wanted]
        return encode(try_reach(targets, str(message["secret"]), float(message["timeout_s"]), self._listener))
