"""Reads what the output of an engine says about the servers."""

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

CANCELLED = "CANCELLED"  # Slurm's word for what scancel, a time limit and preemption do
REMOTE = "Remote daemon:"  # Open MPI 5 names the machine that mpirun runs on before the one that is lost
STARTS_ALL_OR_NONE = "Open MPI"
SHOWN = 8  # servers in a message; the others are counted
# What the doctor calls the reasons that ssh gives.
_OF_SSH = frozenset({"host-key", "login-refused", "host-unknown", "ssh-refused", "host-unreachable"})
_ALL_LINES = 10_000  # engines say much after the reason


def not_come(
    engine: EngineProcess | None, why: str, missing: tuple[str, ...], mistaken: Collection[str] = ()
) -> TlaunchError:
    """Servers that were awaited in vain. `engine` should have brought them; None where they are started by hand.

    `mistaken`: addresses from which servers started by hand came with another token.
    Blocks for some seconds: those of other machines are asked in the engine's way.
    """
    if engine is None:
        hint = (
            "is the command started there, with the same rank table and as that server (--server)? Can that machine reach "
            "this one? `tlaunch doctor` checks"
        )
        if mistaken:
            hint = f"tlaunch came with another token from {', '.join(sorted(mistaken))}; {SAME_VALUE_HINT}"
        return TlaunchError(f"{listed(missing)} did not come: {why}", hint=hint)
    found = engine.why_not(tuple(name for name in missing if not is_local(name)))
    # ssh's own lines about servers that it could not reach, each once: they say more than the engine's.
    lines = dict.fromkeys(line.strip() for line in engine.last_lines(_ALL_LINES))
    by_ssh = [line for line in lines if line.startswith("ssh: ") or diagnose_output([line], "").code in _OF_SSH]
    other = [line for line in by_ssh if not any(line in reason for reason in found.values())]
    answers = [f"{server_id}: {reason}" for server_id, reason in found.items()]
    said = [*answers, *(other[:SHOWN] if by_ssh else engine.last_lines())]
    named = tuple(name for name in missing if name in found or _mentioned([name], by_ssh))
    hint = f"what {engine.name} said is in {engine.log}; tlaunch doctor looks at every server"
    if engine.exit_code == 0:  # a program ran to its end, and it was no agent
        hint = f"the engine may have taken an argument of --engine-option for the program; {hint}"
    waiting = [name for name in missing if named and name not in named]
    if waiting and engine.name.startswith(STARTS_ALL_OR_NONE):
        why = f"{why}; {engine.name} starts no agent before all servers have answered: {listed(waiting)} waited"
    return TlaunchError(f"{listed(named or missing)} did not come: {why}" + _quoted(said), hint=hint)


def turned_back(
    engine: EngineProcess | None, index: int, why: str, names: Mapping[int, Sequence[str]], absent: Sequence[int]
) -> TlaunchError:
    """Return the error of a server that was lost before its ranks were started: an engine may have given up another one.

    index: of the server in `names`, which has what each is called, its id first. absent: those that have not come.
    """
    lost = f"server {escaped(names[index][0])} was lost before its ranks were started: {why}"
    if engine is None:
        return TlaunchError(lost)
    said = engine.last_lines()
    of_servers = (line for line in said if any(_mentioned(known_as, [line]) for known_as in names.values()))
    only = _only_one_of(names, [next(of_servers, "")])  # the reason stands before the end of the others
    # One that is silent, or means a server that had joined, has given up no other one.
    missing = [only] if only is not None else absent if engine.ended else ()
    if given_up := [names[each][0] for each in missing if each in absent]:
        lost = f"{listed(given_up)} did not come: {engine.name} gave the start up, and {lost}"
    return TlaunchError(lost + _quoted(said), hint=f"what {engine.name} said is in {engine.log}")


def own_agent_ended(engine: EngineProcess) -> TlaunchError:
    """Return the error of this server's own agent, where others are started by hand."""
    why = f"{engine.name} ended with exit code {engine.exit_code} before the ranks were started"
    return TlaunchError(why + _quoted(engine.last_lines()), hint=f"what it said is in {engine.log}")


def cancelled(engine: EngineProcess) -> str | None:
    """Return what Slurm said when it ended the run for a person, a limit or a more urgent job, or None."""
    said = engine.last_lines()
    return shortened(f"{engine.name}: {said[-1]}") if any(CANCELLED in line for line in said) else None


def killed(engine: EngineProcess | None) -> Verdict | None:
    """Return the verdict on an engine that a SIGKILL has ended: its agents may be killed with it, or end by its order."""
    if engine is None or not engine.was_killed:
        return None
    return Verdict(None, Confidence.CERTAIN, f"{engine.name} itself was killed, by SIGKILL (signal 9)")


def gave_up(engine: EngineProcess, servers: Sequence[Server], names: Mapping[int, Sequence[str]]) -> Verdict | None:
    """Return the verdict on an engine that ended the agents of its own accord; None if it ended well, without output.

    `names`: the names of servers, by server_index.
    """
    said = engine.last_lines()
    if not said and not engine.exit_code:
        return None
    if not said:
        reason = f"{engine.name} ended with exit code {engine.exit_code}, and ended its agents, without a word of why"
        return Verdict(None, Confidence.LIKELY, reason)
    index = _only_one_of(names, [line for line in said if REMOTE in line] or said)
    reason = shortened(f"{engine.name} gave the run up: {' '.join(said)}")
    return Verdict(None, Confidence.LIKELY, reason, server=None if index is None else servers[index].server_id)


def listed(server_ids: Sequence[str]) -> str:
    return f"server{'s' * (len(server_ids) > 1)} {some_of([*map(escaped, server_ids)], SHOWN)}"


def _quoted(lines: Sequence[str]) -> str:
    return "".join(f"\n| {line}" for line in lines)


def _only_one_of(names: Mapping[int, Sequence[str]], lines: Sequence[str]) -> int | None:
    """Return the only server that these lines mention; None if they mention several."""
    mentioned = [index for index, known_as in names.items() if _mentioned(known_as, lines)]
    return mentioned[0] if len(mentioned) == 1 else None


def _mentioned(names: Sequence[str], lines: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names for line in lines)
