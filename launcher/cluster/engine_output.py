"""Errors and verdicts derived from the output of an engine that starts agents."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from launcher.cluster.engine_process import EngineProcess
from launcher.cluster.join import SAME_VALUE_HINT
from launcher.core.errors import TlaunchError
from launcher.core.records import Server
from launcher.core.text import some_of
from launcher.core.verdict import Confidence, Verdict
from launcher.doctor.join_failure import diagnose_output
from launcher.engines.host_match import is_local
from launcher.logs.terminal import escaped, shortened

CANCELLED = "CANCELLED"  # Slurm prints it after scancel, a time limit or preemption
REMOTE = "Remote daemon:"  # Open MPI 5 prints mpirun's machine before the lost one, which is on this line
STARTS_ALL_OR_NONE = "Open MPI"
SHOWN = 8  # servers that a message lists; the others are counted
# The doctor's codes for errors of ssh.
_OF_SSH = frozenset({"host-key", "login-refused", "host-unknown", "ssh-refused", "host-unreachable"})
_ALL_LINES = 10_000  # engines print many lines after the reason


def not_come(
    engine: EngineProcess | None, why: str, missing: tuple[str, ...], mistaken: Collection[str] = ()
) -> TlaunchError:
    """Return the error for servers that did not join.

    `engine` was to start their agents; it is None if servers are started by hand. `mistaken` has the addresses of
    manually started servers that used a wrong token. Blocks for some seconds, because it tries to reach the missing
    servers as the engine does.
    """
    if engine is None:
        hint = (
            "start the command there with the same rank table and the right --server, and check that it can reach this "
            "machine; `tlaunch doctor` checks both"
        )
        if mistaken:
            hint = f"tlaunch on {', '.join(sorted(mistaken))} connected with another token; {SAME_VALUE_HINT}"
        return TlaunchError(f"{listed(missing)} did not join: {why}", hint=hint)
    found = engine.why_not(tuple(name for name in missing if not is_local(name)))
    # ssh's lines about unreachable servers, without duplicates. They are more specific than the engine's.
    lines = dict.fromkeys(line.strip() for line in engine.last_lines(_ALL_LINES))
    by_ssh = [line for line in lines if line.startswith("ssh: ") or diagnose_output([line], "").code in _OF_SSH]
    other = [line for line in by_ssh if not any(line in reason for reason in found.values())]
    answers = [f"{server_id}: {reason}" for server_id, reason in found.items()]
    said = [*answers, *(other[:SHOWN] if by_ssh else engine.last_lines())]
    named = tuple(name for name in missing if name in found or _mentioned([name], by_ssh))
    hint = f"see the output of {engine.name} in {engine.log}, or run `tlaunch doctor` to check every server"
    if engine.exit_code == 0:  # the engine ran some other program to its end, not an agent
        hint = f"check --engine-option: the engine may have run one of its arguments as the program; {hint}"
    waiting = [name for name in missing if named and name not in named]
    if waiting and engine.name.startswith(STARTS_ALL_OR_NONE):
        why = f"{why}; {engine.name} starts no agent before all servers have answered: {listed(waiting)} waited"
    return TlaunchError(f"{listed(named or missing)} did not join: {why}" + _quoted(said), hint=hint)


def turned_back(
    engine: EngineProcess | None, index: int, why: str, names: Mapping[int, Sequence[str]], absent: Sequence[int]
) -> TlaunchError:
    """Return the error for a server that was lost before its ranks started.

    The cause may be another server, on which the engine could not start an agent. `index` is the lost server.
    `names` has the names of each server, its id first. `absent` are the servers that have not joined.
    """
    lost = f"server {escaped(names[index][0])} was lost before its ranks were started: {why}"
    if engine is None:
        return TlaunchError(lost)
    said = engine.last_lines()
    of_servers = (line for line in said if any(_mentioned(known_as, [line]) for known_as in names.values()))
    only = _only_one_of(names, [next(of_servers, "")])  # the reason comes before lines about other servers
    # A silent engine, or one that reports a server that had joined, has not given up another server.
    missing = [only] if only is not None else absent if engine.ended else ()
    if given_up := [names[each][0] for each in missing if each in absent]:
        lost = f"{listed(given_up)} did not join: {engine.name} aborted the start, and {lost}"
    return TlaunchError(lost + _quoted(said), hint=f"see the output of {engine.name} in {engine.log}")


def own_agent_ended(engine: EngineProcess) -> TlaunchError:
    why = f"{engine.name} ended with exit code {engine.exit_code} before the ranks were started"
    return TlaunchError(why + _quoted(engine.last_lines()), hint=f"see its output in {engine.log}")


def cancelled(engine: EngineProcess) -> str | None:
    """Return the engine's last line if Slurm cancelled the run (scancel, time limit or preemption), else None."""
    said = engine.last_lines()
    return shortened(f"{engine.name}: {said[-1]}") if any(CANCELLED in line for line in said) else None


def killed(engine: EngineProcess | None) -> Verdict | None:
    """Return a verdict if SIGKILL ended the engine and therefore also its agents, else None."""
    if engine is None or not engine.was_killed:
        return None
    return Verdict(None, Confidence.CERTAIN, f"{engine.name} itself was killed, by SIGKILL (signal 9)")


def gave_up(engine: EngineProcess, servers: Sequence[Server], names: Mapping[int, Sequence[str]]) -> Verdict | None:
    """Return the verdict that the engine aborted the run, or None if the engine printed nothing and did not fail."""
    said = engine.last_lines()
    if not said and not engine.exit_code:
        return None
    if not said:
        reason = f"{engine.name} ended with exit code {engine.exit_code} and ended its agents without printing a reason"
        return Verdict(None, Confidence.LIKELY, reason)
    index = _only_one_of(names, [line for line in said if REMOTE in line] or said)
    reason = shortened(f"{engine.name} aborted the run: {' '.join(said)}")
    return Verdict(None, Confidence.LIKELY, reason, server=None if index is None else servers[index].server_id)


def listed(server_ids: Sequence[str]) -> str:
    return f"server{'s' * (len(server_ids) > 1)} {some_of([*map(escaped, server_ids)], SHOWN)}"


def _quoted(lines: Sequence[str]) -> str:
    return "".join(f"\n| {line}" for line in lines)


def _only_one_of(names: Mapping[int, Sequence[str]], lines: Sequence[str]) -> int | None:
    """Return the index of the server that the lines mention, or None if they mention no server or several."""
    mentioned = [index for index, known_as in names.items() if _mentioned(known_as, lines)]
    return mentioned[0] if len(mentioned) == 1 else None


def _mentioned(names: Sequence[str], lines: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names for line in lines)
