"""Measure the connections of servers that were examined, if nothing that was found stands in the way."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.cli.doctor_report import is_sound
from launcher.cli.trial_run import TrialRun, trial_options
from launcher.core.run_dir import LATEST
from launcher.doctor.examine import Examination
from launcher.doctor.examinee import OWN_RUNS, forget
from launcher.doctor.finding import Finding, Severity, Topic
from launcher.doctor.links import Links, best_of, described, judge_links, links_from_json
from launcher.engines.cluster.consultation import Consultation


class LinksTrial:
    """One run of `launcher.trainer.links` on all servers, in a directory of its own that is removed afterwards."""

    def __init__(
        self, options: Mapping[str, Any], consultation: Consultation, examination: Examination, log: Path
    ) -> None:
        self._options = options
        self._consultation = consultation
        self._examination = examination
        self._log = log
        self._runs_dir = Path(options["runs_dir"]).absolute() / f"{OWN_RUNS}{secrets.token_hex(4)}"
        self._is_by_hand = options["engine"] not in {"mpi", "slurm"}

    def findings(self, found: Sequence[Finding]) -> Iterator[Finding]:
        """What the run told of links, or why there was none."""
        if len(self._examination.cluster.servers) == 1:
            return
        if (why := self._why_not(found)) is not None:
            yield self._not_measured(why)
            return
        had_parent = self._runs_dir.parent.is_dir()
        try:
            yield from self._measured()
        finally:
            forget(self._runs_dir, parent=not had_parent)
            self._have_forgotten()

    def _why_not(self, found: Sequence[Finding]) -> str | None:
        if not is_sound(found):
            return "something would break the run that measures them"
        without = [index for index, facts in self._examination.facts.items() if facts.version("torch") is None]
        return "torch is not installed on every server" if without else None

    def _measured(self) -> tuple[Finding, ...]:
        """What looks slow is measured once more: somebody else may have used the machines for a moment."""
        cluster = self._examination.cluster
        links = self._run()
        if isinstance(links, Finding):
            return (links,)
        found = judge_links(links, cluster)
        if any(one.severity is not Severity.NOTE for one in found):
            again = self._run()
            if isinstance(again, Finding):
                return (again,)
            links = best_of(links, again)
            found = judge_links(links, cluster)
        usual = described(links)
        return found or (
            self._note("links-measured", f"between servers {usual} are usual, and no pair is far from it"),
        )

    def _run(self) -> Links | Finding:
        """What one run has measured, or why it has not."""
        port = _free_port()
        trial = TrialRun(trial_options(self._options, self._runs_dir, port), self._log)
        if self._is_by_hand:
            self._have_others_measure(port)
        exit_code = trial.attend(self._consultation.step)
        if exit_code:
            return self._failed(exit_code, next(self._consultation.troubles(), trial.why()))
        written = self._read()
        try:
            return links_from_json(written["links"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return self._not_measured(str(written.get("trouble", "the measurement left nothing behind")))

    def _have_others_measure(self, port: int) -> None:
        message = {"do": "measure", "runs_dir": str(self._runs_dir), "coordinator_port": port}
        others = set(self._examination.facts) - {self._first}
        self._consultation.begin_to_ask(dict.fromkeys(others, message))

    @property
    def _first(self) -> int:
        servers = self._examination.cluster.servers
        return next(index for index, server in enumerate(servers) if server.devices[0].global_rank == 0)

    def _read(self) -> Mapping[str, Any]:
        """Rank 0's server may be another machine, with a file system of its own."""
        run_dir = (self._runs_dir / LATEST).resolve()
        return self._consultation.ask({self._first: {"do": "links", "run_dir": str(run_dir)}}).get(self._first, {})

    def _have_forgotten(self) -> None:
        facts = self._examination.facts
        folders = {index: one.folder("runs_dir") for index, one in facts.items()}
        self._consultation.ask(
            {
                index: {"do": "forget", "runs_dir": str(self._runs_dir), "parent": bool(folder and not folder.exists)}
                for index, folder in folders.items()
            }
        )

    def _not_measured(self, why: str) -> Finding:
        return self._note("links-not-measured", f"links were not measured: {why}")

    def _note(self, code: str, message: str) -> Finding:
        servers = tuple(range(len(self._examination.cluster.servers)))
        return Finding(code, Topic.LINKS, Severity.NOTE, servers, message)

    def _failed(self, exit_code: int, why: str) -> Finding:
        servers = tuple(range(len(self._examination.cluster.servers)))
        return Finding(
            "trial-run-failed", Topic.LINKS, Severity.BREAKS, servers,
            f"a run that only measures links failed with exit code {exit_code}: {why}",
            "`tlaunch run` with the same options and `-- python -m launcher.trainer.links` shows the whole of it",
        )  # fmt: skip


def _free_port() -> int:
    with suppress(OSError), socket.create_server(("", 0)) as found:
        return int(found.getsockname()[1])
    return 0
