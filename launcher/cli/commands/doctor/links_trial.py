"""Measure the links between examined servers, unless a problem was found that would break a run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.cli.commands.doctor import trial_run
from launcher.cli.commands.doctor.doctor_report import is_sound
from launcher.cli.run_options import BRING_ALL
from launcher.cli.text.stdout import say
from launcher.cluster.probe_session import ProbeSession
from launcher.core.codec import decode
from launcher.core.run_dir import LATEST
from launcher.doctor.examine import Examination
from launcher.doctor.finding import Evidence, Finding, Severity, Topic
from launcher.doctor.links import Links, best_of, described, judge_links
from launcher.doctor.probe_handler import OWN_RUNS, forget
from launcher.doctor.rules.network_rules import carried_by, unexpected_interface
from launcher.supervise.port import hold_port


class LinksTrial:
    """A short run that measures the links between all servers, in a temporary runs directory."""

    def __init__(
        self, options: Mapping[str, Any], session: ProbeSession, examination: Examination, directory: Path
    ) -> None:
        """Prepare the run without starting it. `directory` holds the doctor's temporary files."""
        self._options = options
        self._session = session
        self._examination = examination
        self._runs_dir = Path(options["runs_dir"]).absolute() / f"{OWN_RUNS}{secrets.token_hex(4)}"
        self._remains = trial_run.Remains(self._runs_dir, not os.path.isdir(self._runs_dir.parent), directory)  # noqa: PTH112 - Path raises
        self.links: Links | None = None  # the measurements
        self._is_by_hand = options["engine"] not in BRING_ALL

    def findings(self, found: Sequence[Finding]) -> Iterator[Finding]:
        """Measure the links and yield findings about them, or one finding that says why they were not measured."""
        if len(self._examination.cluster.servers) == 1:
            return
        if not is_sound(found):
            yield self._not_measured("repair the problems above first, which would break the measurement")
            return
        if any(facts.version("torch") is None for facts in self._examination.facts.values()):
            yield self._not_measured("torch is not installed on every server")
            return
        say("measuring links by a short run on all servers; its files are removed unless it fails")
        try:
            yield from self._measured()
        finally:
            forget(self._runs_dir, parent=self._remains.parent)
            folders = {index: facts.folder("runs_dir") for index, facts in self._examination.facts.items()}
            message = {"do": "forget", "runs_dir": str(self._runs_dir)}
            self._session.ask(
                {index: {**message, "parent": bool(folder and not folder.exists)} for index, folder in folders.items()}
            )

    def _measured(self) -> tuple[Finding, ...]:
        """Measure the links. If any are slow, measure again, because the machines may have been busy."""
        cluster = self._examination.cluster
        links = self._run()
        if isinstance(links, Finding):
            return (links,)
        evidence = Evidence(cluster, self._examination.facts, {}, {})
        links = replace(links, interfaces=carried_by(links.interfaces, evidence))
        found = judge_links(links, cluster)
        if any(one.severity is not Severity.NOTE for one in found):
            again = self._run()
            if isinstance(again, Finding):
                return (again,)
            links = best_of(links, again)
            found = judge_links(links, cluster)
        self.links = links
        near = self._note("links-measured", f"links between servers have {described(links)}, and no pair differs much")
        return (*(found or (near,)), *unexpected_interface(links.interfaces, evidence))

    def _run(self) -> Links | Finding:
        """Run the measurement once and return its results, or return a finding if the run failed."""
        port = 0
        with suppress(OSError), closing(hold_port()) as held:
            port = held.number
        with self._session.usual_limits():
            trial = trial_run.TrialRun(trial_run.trial_options(self._options, self._runs_dir, port), self._remains)
        first = self._examination.cluster.first_server
        message = {"do": "measure", "runs_dir": str(self._runs_dir), "coordinator_port": port}
        others = set(self._examination.facts) - {first} if self._is_by_hand else ()
        self._session.begin_to_ask(dict.fromkeys(others, message))
        exit_code = trial.attend(self._session.step, lambda: next(self._failed_servers(), None) is not None)
        if exit_code == trial_run.ENDED:
            return self._failed(next(self._failed_servers(), f"its processes do not exit: {trial.why()}"))
        if exit_code:
            return self._failed(f"exit code {exit_code}: {trial.why()}")
        # Rank 0 may be on another machine with a separate file system.
        run_dir = (self._runs_dir / LATEST).resolve()
        written = self._session.ask({first: {"do": "links", "run_dir": str(run_dir)}}).get(first, {})
        try:
            return decode(Links, written["links"])
        except (KeyError, ValueError):
            return self._not_measured(str(written.get("trouble", "the measurement wrote no results")))

    def _failed_servers(self) -> Iterator[str]:
        """Yield a message for each server that failed or was lost."""
        yield from self._session.troubles()
        for index, failure in self._session.join_failures.items():
            yield f"server {self._examination.cluster.servers[index].server_id}: {failure.why}"

    def _not_measured(self, why: str) -> Finding:
        return self._note("links-not-measured", f"links were not measured: {why}")

    def _note(self, code: str, message: str) -> Finding:
        servers = tuple(range(len(self._examination.cluster.servers)))
        return Finding(code, Topic.LINKS, Severity.NOTE, servers, message)

    def _failed(self, why: str) -> Finding:
        """Keep the failed run's logs. Return a finding about the blamed server, or about all if no server is blamed."""
        servers = self._examination.cluster.servers
        run_dir = (self._runs_dir / LATEST).resolve()
        blamed = trial_run.blamed_server(run_dir, servers)
        kept = trial_run.kept_run(run_dir)
        where = "" if blamed is None else f" on server {servers[blamed].server_id}"
        return Finding(
            "trial-run-failed", Topic.LINKS, Severity.BREAKS,
            tuple(range(len(servers))) if blamed is None else (blamed,),
            f"a run that only measures links failed{where}: {trial_run.with_kept_path(why, run_dir, kept)}",
            f"read its logs with `tlaunch why {kept}`" if kept is not None else
            "see all of its output with `tlaunch run`, the same options and `-- python -m launcher.trainer.links`",
        )  # fmt: skip
