"""What `tlaunch doctor` does: start agents, ask them, judge, measure, report; or be one of several servers that are asked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.cli.commands.doctor.links_trial import LinksTrial
from launcher.cli.commands.doctor.report import is_sound, refusal_to_json, report_lines, report_to_json
from launcher.cli.commands.doctor.trial_guard import OWN_DIRECTORY
from launcher.cli.commands.doctor.trial_run import OwnPart, kept_table, measuring
from launcher.cli.launch.engine_commands import HANDED_ON, engine_for, own_agent, server_names, with_door
from launcher.cli.launch.network import doubt_of_table
from launcher.cli.launch.options import RunOptions, for_engine
from launcher.cli.launch.prepare import Prepared, prepare
from launcher.cli.launch.servers import join_first_server, open_door, shared_token, this_server
from launcher.cli.text.columns import awaited, server_list
from launcher.cli.text.stderr import say
from launcher.cli.text.stdout import write_out
from launcher.core import env
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError
from launcher.core.frozen import frozen
from launcher.core.json_text import json_text
from launcher.core.records import Server
from launcher.doctor.examine import Examination, Wish, examine
from launcher.doctor.finding import Finding, Severity, Topic
from launcher.doctor.findings import in_order, judge
from launcher.engines.cluster.consultation import SILENCE_S, Consultation
from launcher.engines.cluster.examined import be_examined
from launcher.engines.cluster.job import EXAMINATION
from launcher.engines.cluster.join import Endpoint
from launcher.engines.cluster.plan import Plan
from launcher.engines.cluster.program_check import odd_programs, programs_of, question
from launcher.engines.command import EngineCommand
from launcher.engines.host_match import Host, read_host
from launcher.engines.mpi import alone_variables
from launcher.program.digests import essential_words

AGREEMENT = {"command": "tlaunch doctor"}  # a run and an examination are not to be taken for each other


def consult(options: Mapping[str, Any], command: tuple[str, ...], *, measures: bool, as_json: bool) -> int:
    """Examine the servers of the run that `options` of `tlaunch run` would start; the exit code.

    `command`: empty where nobody says what the run would start.

    Raises:
        TlaunchError: table, options or engine do not fit, or this server is not wanted by the first one. `as_json`
            stdout has that, too.
    """
    try:
        return _consult(options, command, measures=measures, as_json=as_json)
    except TlaunchError as error:
        if as_json:
            write_out(json_text(refusal_to_json(error)))
        raise


def _consult(options: Mapping[str, Any], command: tuple[str, ...], *, measures: bool, as_json: bool) -> int:
    chosen = for_engine(measuring(options), os.environ)
    prepared = prepare(chosen, os.environ)
    servers = prepared.used.servers
    host = read_host(server_names(servers))
    here = None if chosen.by_engine else this_server(servers, host, chosen.server) if len(servers) > 1 else 0
    if here is not None and here != prepared.used.first_server:
        return _take_part(options, chosen, prepared, host, here)
    with _own_directory() as directory:
        return _examine(_Practice(options, command, chosen, prepared, host, here, directory), measures, as_json)


@contextmanager
def _own_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=OWN_DIRECTORY) as directory:
        yield Path(directory)


@frozen
class _Practice:
    """What is known before anything is started."""

    options: Mapping[str, Any]  # of `tlaunch run`, as they were given
    command: tuple[str, ...]  # empty where nobody says what the run would start
    chosen: RunOptions
    prepared: Prepared
    host: Host
    here: int | None  # which server this is, where others are started by hand; None where an engine brings all
    directory: Path  # for what engines read and say

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.prepared.used.servers

    def consultation(self) -> Consultation:
        """With nobody there yet."""
        is_by_hand = self.here is not None and len(self.servers) > 1
        listener, door = open_door(self.host, self.chosen.port_by_hand if is_by_hand else None)
        plan = Plan(
            listener=listener,
            token=door.token,
            shared_token=shared_token(),
            silence_s=SILENCE_S,
            join_timeout_s=self.chosen.join_timeout,
            engine=self._all(door) if self.here is None else own_agent(self.servers[self.here], door),
            brings_all=self.here is None,
            job=EXAMINATION,
            agreement=AGREEMENT,
            resolved=tuple((name, frozenset(map(str, found))) for name, found in self.host.resolved),
        )
        alone = (lambda index, join_s: self._alone(index, door, join_s)) if self.here is None else None
        return Consultation(plan, self.servers, alone, self.directory)

    def wish(self) -> Wish:
        table, port = self.chosen.rank_table, self.chosen.master_port
        return Wish(
            cwd=self.prepared.request.cwd,
            runs_dir=self.prepared.request.runs_dir,
            table=None if table is None or not table.is_file() else table.absolute(),  # nobody reads a pipe twice
            ports=() if port is None else (port,),
            variables=tuple(sorted(self.prepared.request.user_env.items())),
        )

    def _all(self, door: Endpoint) -> EngineCommand:
        return with_door(engine_for(self.chosen, self.servers, self.host)(self.directory), door)

    def _alone(self, index: int, door: Endpoint, join_s: float) -> EngineCommand:
        """Its number among the engine's processes would say that it is the first server: it is told which one it is.

        `join_s`: for so long it looks for this machine.
        """
        server = self.servers[index]
        directory = self.directory / f"server{index}"
        directory.mkdir(exist_ok=True)
        told = {env.TLAUNCH_SERVER: server.server_id, env.TLAUNCH_JOIN_S: f"{join_s:.1f}"}
        handed_on = (*HANDED_ON, *told)
        command = with_door(engine_for(self.chosen, (server,), self.host, handed_on)(directory), door)
        own = alone_variables(command.engine, directory, os.environ)
        return replace(command, env={**command.env, **own, **told})


def _examine(practice: _Practice, measures: bool, as_json: bool) -> int:
    for note in practice.prepared.notes:
        say(note)
    doubts = tuple(_doubts(practice))
    consultation = practice.consultation()
    try:
        limit_s = None if practice.here is None else practice.chosen.join_timeout
        consultation.gather(lambda missing: say(awaited(server_list(missing), limit_s)))
        examination = examine(practice.prepared.used, practice.wish(), consultation)
        # What does not change while links are measured; a server may be lost meanwhile.
        lasting = (*doubts, *_program_findings(practice, consultation))
        findings = _findings(examination, consultation, lasting)
        if measures:
            options = kept_table(practice.options, practice.prepared.table_text, practice.directory)
            trial = LinksTrial(options, consultation, examination, practice.directory)
            measured = tuple(trial.findings(findings))
            findings = in_order((*_findings(examination, consultation, lasting), *measured))
            examination = replace(examination, links=trial.links)
        exit_code = EXIT_OK if is_sound(findings) else EXIT_FAILURE
        consultation.finish(exit_code)
    finally:
        consultation.close()
    reasons = {index: absence.why for index, absence in consultation.absences.items()}
    examination = replace(examination, troubles={**examination.troubles, **reasons})
    _report(examination, findings, as_json=as_json)
    return exit_code


def _doubts(practice: _Practice) -> Iterator[Finding]:
    """A run would start ranks here all the same."""
    if doubt := doubt_of_table(practice.prepared, practice.chosen, practice.host):
        yield Finding("server-unknown", Topic.TABLE, Severity.RISKY, (0,), doubt)


def _findings(
    examination: Examination, consultation: Consultation, lasting: tuple[Finding, ...]
) -> tuple[Finding, ...]:
    found = judge(
        examination.cluster, examination.facts, examination.reach, examination.offsets_s, examination.troubles,
        consultation.absences,
    )  # fmt: skip
    refused = [
        Finding("refused", Topic.ANSWER, Severity.BREAKS, () if index is None else (index,), error.message, error.hint)
        for index, error in consultation.objections
    ]
    return in_order((*found, *refused, *lasting))


def _program_findings(practice: _Practice, consultation: Consultation) -> tuple[Finding, ...]:
    """A stale copy of the program, where there is one, and somebody says which program the run would start."""
    if not practice.command or len(practice.servers) == 1:
        return ()
    request = practice.prepared.request
    words = essential_words(practice.command, {**os.environ, **request.user_env}, request.cwd)
    answers = consultation.ask(dict.fromkeys(range(len(practice.servers)), question(words, request)))
    odd = odd_programs(programs_of(answers), practice.servers)
    if odd is None:
        return ()
    return (Finding("program-differs", Topic.FILES, Severity.BREAKS, odd.servers, odd.message, odd.hint),)


def _report(examination: Examination, findings: tuple[Finding, ...], *, as_json: bool) -> None:
    if as_json:
        write_out(json_text(report_to_json(examination, findings)))
    else:
        write_out("".join(f"{line}\n" for line in report_lines(examination, findings)))


# --- on other servers that are started by hand ---


def _take_part(options: Mapping[str, Any], chosen: RunOptions, prepared: Prepared, host: Host, here: int) -> int:
    servers = prepared.used.servers
    membership = join_first_server(chosen, servers, host, here, AGREEMENT)
    with _own_directory() as directory:
        own_part = OwnPart(kept_table(options, prepared.table_text, directory), directory)
        with closing(own_part):
            finish = be_examined(membership, own_part.answer)
    first = servers[prepared.used.first_server].server_id
    say(f"server {servers[here].server_id} has been examined; what was found is told on server {first}")
    return finish.exit_code
