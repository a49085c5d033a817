"""Measure the connections of servers that were examined, if nothing that was found stands in the way."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.cli.commands.doctor.report import is_sound
from launcher.cli.commands.doctor.trial_guard import Remains
from launcher.cli.commands.doctor.trial_run import ENDED, TrialRun, blamed_server, kept_run, told_of, trial_options
from launcher.cli.launch.options import BRING_ALL
from launcher.cli.text.stderr import say
from launcher.core.run_dir import LATEST
from launcher.doctor.examine import Examination
from launcher.doctor.examinee import OWN_RUNS, forget
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.links import Links, best_of, described, judge_links, links_from_json
from launcher.doctor.rules.network import carried_by, elsewhere
from launcher.engines.cluster.consultation import Consultation
from launcher.supervise.port import hold_port


class LinksTrial:
    """One run of `launcher.trainer.links` on all servers, in a directory of its own that is removed afterwards."""

    def __init__(
        self, options: Mapping[str, Any], consultation: Consultation, examination: Examination, directory: Path
    ) -> None:
        """`directory`: for temporary files of this examination."""
        self._options = options
        self._consultation = consultation
        self._examination = examination
        self._runs_dir = Path(options["runs_dir"]).absolute() / f"{OWN_RUNS}{secrets.token_hex(4)}"
        self._remains = Remains(self._runs_dir, not os.path.isdir(self._runs_dir.parent), directory)  # noqa: PTH112 - Path raises
        self.links: Links | None = None  # what was measured
        self._is_by_hand = options["engine"] not in BRING_ALL

    def findings(self, found: Sequence[Finding]) -> Iterator[Finding]:
        """What the run told of links, or why there was none."""
        if len(self._examination.cluster.servers) == 1:
            return
        if (why := self._why_not(found)) is not None:
            yield self._not_measured(why)
            return
        say("measuring links: a short run on all servers, of which nothing is left unless it fails")
        try:
            yield from self._measured()
        finally:
            forget(self._runs_dir, parent=self._remains.parent)
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
        evidence = Evidence(cluster, self._examination.facts, {}, {}, {})
        links = replace(links, interfaces=carried_by(links.interfaces, evidence))
        found = judge_links(links, cluster)
        if any(one.severity is not Severity.NOTE for one in found):
            again = self._run()
            if isinstance(again, Finding):
                return (again,)
            links = best_of(links, again)
            found = judge_links(links, cluster)
        self.links = links
        usual = described(links)
        near = self._note("links-measured", f"between servers {usual} are usual, and no pair is far from it")
        return (*(found or (near,)), *elsewhere(links.interfaces, evidence))

    def _run(self) -> Links | Finding:
        """What one run has measured, or why it has not."""
        port = _free_port()
        with self._consultation.usual_limits():
            trial = TrialRun(trial_options(self._options, self._runs_dir, port), self._remains)
        self._consultation.begin_to_ask(self._others_part(port) if self._is_by_hand else {})
        exit_code = trial.attend(self._consultation.step, lambda: next(self._why_in_vain(), None) is not None)
        if exit_code == ENDED:
            return self._failed(next(self._why_in_vain(), f"it does not end: {trial.why()}"))  # by itself, or at all
        if exit_code:
            return self._failed(f"exit code {exit_code}: {trial.why()}")
        written = self._read()
        try:
            return links_from_json(written["links"])
        except (KeyError, TypeError, ValueError, AttributeError):
            return self._not_measured(str(written.get("trouble", "the measurement left nothing behind")))

    def _others_part(self, port: int) -> Mapping[int, Mapping[str, Any]]:
        message = {"do": "measure", "runs_dir": str(self._runs_dir), "coordinator_port": port}
        return dict.fromkeys(set(self._examination.facts) - {self._examination.cluster.first_server}, message)

    def _why_in_vain(self) -> Iterator[str]:
        """Servers whose part has failed, or that are lost: the run would wait for them until its patience ends."""
        yield from self._consultation.troubles()
        for index, absence in self._consultation.absences.items():
            yield f"server {self._examination.cluster.servers[index].server_id}: {absence.why}"

    def _read(self) -> Mapping[str, Any]:
        """Rank 0's server may be another machine, with a file system of its own."""
        run_dir = (self._runs_dir / LATEST).resolve()
        first = self._examination.cluster.first_server
        return self._consultation.ask({first: {"do": "links", "run_dir": str(run_dir)}}).get(first, {})

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

    def _failed(self, why: str) -> Finding:
        """Of the server whose rank is to blame, where the run has found it out; else of all. Its logs are kept."""
        servers = self._examination.cluster.servers
        run_dir = (self._runs_dir / LATEST).resolve()
        blamed = blamed_server(run_dir, servers)
        kept = kept_run(run_dir)
        where = "" if blamed is None else f" on server {servers[blamed].server_id}"
        return Finding(
            "trial-run-failed", Topic.LINKS, Severity.BREAKS,
            tuple(range(len(servers))) if blamed is None else (blamed,),
            f"a run that only measures links failed{where}: {told_of(why, run_dir, kept)}",
            f"its logs are kept: `tlaunch why {kept}` reads them" if kept is not None else
            "`tlaunch run` with the same options and `-- python -m launcher.trainer.links` shows the whole of it",
        )  # fmt: skip


def _free_port() -> int:
    with suppress(OSError), closing(hold_port()) as held:
        return held.number
    return 0
