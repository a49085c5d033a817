"""`tlaunch doctor`: examine all servers of a planned run, and report problems that would break it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from launcher.cli.commands.doctor.doctor_report import is_sound, refusal_to_json, report_lines, report_to_json
from launcher.cli.commands.doctor.links_trial import LinksTrial
from launcher.cli.commands.doctor.trial_run import OWN_DIRECTORY, OwnPart, kept_table, measuring
from launcher.cli.launch.engine_commands import HANDED_ON, engine_for, own_agent, server_names, with_endpoint
from launcher.cli.launch.prepare import Prepared, doubt_of_table, prepare
from launcher.cli.launch.servers import join_first_server, open_endpoint, this_server
from launcher.cli.launch.shared_token import draw_token
from launcher.cli.options import run as of_run
from launcher.cli.options.chosen_run import json_option
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.precedence import given_last
from launcher.cli.options.types import complete_files
from launcher.cli.run_options import RunOptions, for_engine
from launcher.cli.text.columns import awaited, server_list
from launcher.cli.text.stdout import say, write_lines, write_out
from launcher.cli.text.style import screen_of
from launcher.cluster.job import EXAMINATION, Plan
from launcher.cluster.join import Endpoint
from launcher.cluster.probe_server import serve_probes
from launcher.cluster.probe_session import SILENCE_S, ProbeSession
from launcher.cluster.program_check import odd_programs, programs_of, question
from launcher.core import env
from launcher.core.codec import json_text
from launcher.core.errors import EXIT_FAILURE, EXIT_OK, TlaunchError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Server
from launcher.doctor.examine import Examination, ExaminationRequest, examine
from launcher.doctor.finding import Evidence, Finding, Severity, Topic, in_order
from launcher.doctor.rules import judge
from launcher.engines.engine_command import EngineCommand
from launcher.engines.host_match import Host, read_host
from launcher.engines.mpi import alone_variables
from launcher.program.digests import essential_words

EPILOG = """\b
Examples:
  tlaunch doctor --devices 4
  tlaunch doctor --rank-table rank_table.json --engine mpi
  tlaunch doctor --rank-table rank_table.json      # on each server by hand
  tlaunch doctor --rank-table rank_table.json --engine mpi --json | jq .sound
  tlaunch doctor --rank-table rank_table.json --engine mpi -- python train.py

The doctor starts one agent per server, like `tlaunch run`. Each agent reports names, addresses, interfaces, clock,
versions, rank table, disks, limits and devices, and tries to reach all other servers. If nothing would break a run, a
short run measures the links. Its files are removed unless it fails.

With COMMAND, the program's files are compared, too: an outdated copy on one server would change the training.

A finding is `breaks` if it makes a run fail, `risky` if it may, and `note` if it is not a problem. A server on which the
agent cannot start is a finding; the other servers are still examined.

Exit codes: 0 nothing would break a run; 1 something would; 2 wrong usage, unreadable files, or mpirun or srun is missing;
3 a refused rank table.
"""
EXAMINATION_JOIN_S = 60.0
LAYOUT = ("--dp", "--mp", "--pp", "--micro-batches")


class _LayoutFree(TakesCommand):
    """A click command that explains why layout options such as --dp are not accepted."""

    without = "skip the comparison of a program's files"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ends_options = "--" in args
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if error.option_name in LAYOUT:
                raise UsageError(
                    f"{error.option_name}: doctor has no layout options, because doctor checks all devices in the rank table",
                    hint=f"remove {error.option_name}",
                ) from error
            raise
        if ctx.params["command"] and not ends_options:  # more likely a typing error than a program
            raise UsageError(
                f"{ctx.command_path}: unexpected argument {ctx.params['command'][0]}",
                hint="to compare a program's files across servers, put COMMAND after `--`",
            )
        return rest


@click.command(cls=_LayoutFree, epilog=EPILOG)
@of_run.rank_table_option
@of_run.devices_option()
@of_run.engine_option
@of_run.engine_words_option
@of_run.server_option
@of_run.join_timeout_option(EXAMINATION_JOIN_S, "Report servers that have not joined within this time.")
@of_run.coordinator_port_option
@of_run.chip_option
@of_run.env_option
@of_run.master_port_option("free")
@click.option("--no-links", is_flag=True, help="Do not measure the network links between servers.")
@of_run.runs_dir_option
@json_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[COMMAND...]", shell_complete=complete_files)
@click.pass_context
def doctor(
    context: click.Context, /, *, no_links: bool, as_json: bool, command: tuple[str, ...], **options: Any
) -> int:
    """Check all servers for problems that would break a run."""
    try:
        given = given_last(context, options)
        chosen = for_engine(measuring(given), os.environ)
        prepared = prepare(chosen, os.environ)
        servers = prepared.used.servers
        host = read_host(server_names(servers))
        here = None if chosen.by_engine else this_server(servers, host, chosen.server) if len(servers) > 1 else 0
        if here is not None and here != prepared.used.first_server:
            return _take_part(given, chosen, prepared, host, here)
        with tempfile.TemporaryDirectory(prefix=OWN_DIRECTORY) as directory:
            planned = _DoctorRun(given, command, chosen, prepared, host, here, Path(directory))
            return _examine(planned, not no_links, as_json)
    except TlaunchError as error:
        if as_json:
            write_out(json_text(refusal_to_json(error)))
        raise


AGREEMENT = {"command": "tlaunch doctor"}  # so that a run and an examination do not join each other


@frozen
class _DoctorRun:
    options: Mapping[str, Any]  # of `tlaunch run`, as given
    command: tuple[str, ...]  # of the run; empty if not given
    chosen: RunOptions
    prepared: Prepared
    host: Host
    here: int | None  # index of this server if servers are started by hand; None if an engine starts them
    directory: Path  # for input and output of engines

    @property
    def servers(self) -> tuple[Server, ...]:
        return self.prepared.used.servers

    def session(self) -> ProbeSession:
        """Return a new session. No server has joined it yet."""
        by_hand = self.chosen.port_by_hand if self.here is not None and len(self.servers) > 1 else None
        listener, endpoint = open_endpoint(self.host, by_hand)
        plan = Plan(
            listener=listener,
            token=endpoint.token,
            shared_token=draw_token(self.prepared.request.runs_dir, os.environ),
            silence_s=SILENCE_S,
            join_timeout_s=self.chosen.join_timeout,
            engine=own_agent(self.servers[self.here], endpoint)
            if self.here is not None
            else with_endpoint(engine_for(self.chosen, self.servers, self.host)(self.directory), endpoint),
            brings_all=self.here is None,
            job=EXAMINATION,
            agreement=AGREEMENT,
            resolved=tuple((name, frozenset(map(str, found))) for name, found in self.host.resolved),
        )
        alone = (lambda index, join_s: self._alone(index, endpoint, join_s)) if self.here is None else None
        return ProbeSession(plan, self.servers, alone, self.directory)

    def examination_request(self) -> ExaminationRequest:
        table, port, request = self.chosen.rank_table, self.chosen.master_port, self.prepared.request
        return ExaminationRequest(
            cwd=request.cwd,
            runs_dir=request.runs_dir,
            table=None if table is None or not table.is_file() else table.absolute(),  # a pipe cannot be read twice
            ports=() if port is None else (port,),
            variables=tuple(sorted(request.user_env.items())),
        )

    def _alone(self, index: int, endpoint: Endpoint, join_s: float) -> EngineCommand:
        """Return the command that starts the agent of one server. The agent must connect within `join_s` seconds.

        Each agent is started by a separate engine command and is process 0 there, so it is also given its server's id.
        """
        server = self.servers[index]
        directory = self.directory / f"server{index}"
        directory.mkdir(exist_ok=True)
        own_env = {env.TLAUNCH_SERVER: server.server_id, env.TLAUNCH_JOIN_S: f"{join_s:.1f}"}
        handed_on = (*HANDED_ON, *own_env)
        command = with_endpoint(engine_for(self.chosen, (server,), self.host, handed_on)(directory), endpoint)
        mpi_env = alone_variables(command.engine, directory, os.environ)
        return replace(command, env={**command.env, **mpi_env, **own_env})


def _examine(planned: _DoctorRun, measures: bool, as_json: bool) -> int:
    for note in planned.prepared.notes:
        say(note)
    # A run would start ranks on this machine although the table may describe another one.
    doubt = doubt_of_table(planned.prepared, planned.host)
    doubts = [Finding("server-unknown", Topic.TABLE, Severity.RISKY, (0,), doubt)] if doubt else []
    session = planned.session()
    try:
        limit_s = None if planned.here is None else planned.chosen.join_timeout
        session.gather(lambda missing: say(awaited(server_list(missing), limit_s)))
        examination = examine(planned.prepared.used, planned.examination_request(), session)
        # Findings that do not change while links are measured; a server may be lost meanwhile.
        lasting = (*doubts, *_program_findings(planned, session))
        findings = _findings(examination, session, lasting)
        if measures:
            options = kept_table(planned.options, planned.prepared.table.text, planned.directory)
            trial = LinksTrial(options, session, examination, planned.directory)
            measured = tuple(trial.findings(findings))
            findings = in_order((*_findings(examination, session, lasting), *measured))
            examination = replace(examination, links=trial.links)
        exit_code = EXIT_OK if is_sound(findings) else EXIT_FAILURE
        session.finish(exit_code)
    finally:
        session.close()
    reasons = {index: failure.why for index, failure in session.join_failures.items()}
    examination = replace(examination, troubles={**examination.troubles, **reasons})
    if as_json:
        write_out(json_text(report_to_json(examination, findings)))
    else:
        write_lines(report_lines(examination, findings, screen_of(sys.stdout)))
    return exit_code


def _findings(examination: Examination, session: ProbeSession, lasting: tuple[Finding, ...]) -> tuple[Finding, ...]:
    found = judge(
        Evidence(
            examination.cluster, examination.facts, examination.reach, examination.offsets_s, examination.troubles,
            session.join_failures,
        )
    )  # fmt: skip
    refused = [
        Finding("refused", Topic.ANSWER, Severity.BREAKS, () if index is None else (index,), error.message, error.hint)
        for index, error in session.objections
    ]
    return in_order((*found, *refused, *lasting))


def _program_findings(planned: _DoctorRun, session: ProbeSession) -> tuple[Finding, ...]:
    """Return a finding if the files of the program in COMMAND differ between servers."""
    if not planned.command or len(planned.servers) == 1:
        return ()
    request = planned.prepared.request
    words = essential_words(planned.command, {**os.environ, **request.user_env}, request.cwd)
    answers = session.ask(dict.fromkeys(range(len(planned.servers)), question(words, request)))
    odd = odd_programs(programs_of(answers), planned.servers)
    if odd is None:
        return ()
    return (Finding("program-differs", Topic.FILES, Severity.BREAKS, odd.servers, odd.message, odd.hint),)


def _take_part(options: Mapping[str, Any], chosen: RunOptions, prepared: Prepared, host: Host, here: int) -> int:
    servers = prepared.used.servers
    membership = join_first_server(
        chosen, servers, host, here, agreed=AGREEMENT, until=time.monotonic() + chosen.join_timeout
    )
    with tempfile.TemporaryDirectory(prefix=OWN_DIRECTORY) as name:
        directory = Path(name)
        with closing(OwnPart(kept_table(options, prepared.table.text, directory), directory)) as own_part:
            finish = serve_probes(membership, own_part.answer)
    first = servers[prepared.used.first_server].server_id
    say(f"server {servers[here].server_id} has been examined; server {first} shows the report")
    return finish.exit_code
