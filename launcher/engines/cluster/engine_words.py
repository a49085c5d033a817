"""What an engine's own words say of the servers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from launcher.core.errors import TlaunchError
from launcher.core.records import Server
from launcher.core.verdict import Confidence, Verdict
from launcher.engines.cluster.engine_process import EngineProcess
from launcher.engines.whereabouts import is_here
from launcher.logs.terminal import escaped, shortened

CANCELLED = "CANCELLED"  # Slurm's word for what scancel, a time limit and preemption do
SHOWN = 8  # servers in a message; the others are counted


def not_come(engine: EngineProcess | None, why: str, missing: tuple[str, ...]) -> TlaunchError:
    """Servers that were awaited in vain. `engine` should have brought them; None where they are started by hand.

    Blocks for some seconds: those of other machines are asked in the engine's way.
    """
    if engine is None:
        hint = "is the command started there, and can it reach this one? tlaunch doctor looks"
        return TlaunchError(f"{listed(missing)} did not come: {why}", hint=hint)
    found = engine.why_not(tuple(name for name in missing if not is_here(name)))
    said = [*(f"{server_id}: {reason}" for server_id, reason in found.items()), *engine.last_lines()]
    hint = f"what {engine.name} said is in {engine.log}; tlaunch doctor looks at every server"
    if engine.exit_code == 0:  # a program ran to its end, and it was no agent
        hint = f"a word of --engine-option may have been taken for the program to start; {hint}"
    return TlaunchError(
        f"{listed(tuple(found) or missing)} did not come: {why}" + "".join(f"\n| {line}" for line in said), hint=hint
    )


def cancelled(engine: EngineProcess) -> str | None:
    """What Slurm said where it was told to end the run: by a person, a limit or a more urgent job."""
    said = engine.last_lines()
    return shortened(f"{engine.name}: {said[-1]}") if any(CANCELLED in line for line in said) else None


def gave_up(engine: EngineProcess, servers: Sequence[Server], names: Mapping[int, Sequence[str]]) -> Verdict | None:
    """Of an engine that has ended the agents of its own accord; None where it says nothing. `names`: by server_index."""
    said = engine.last_lines()
    if not said:
        return None
    index = next((index for index, known_as in names.items() if _mentioned(known_as, said)), None)
    reason = shortened(f"{engine.name} gave the run up: {' '.join(said)}")
    return Verdict(None, Confidence.LIKELY, reason, server=None if index is None else servers[index].server_id)


def listed(server_ids: Sequence[str]) -> str:
    shown = ", ".join(map(escaped, server_ids[:SHOWN]))
    more = f" and {len(server_ids) - SHOWN} more" if len(server_ids) > SHOWN else ""
    return f"server{'s' * (len(server_ids) > 1)} {shown}{more}"


def _mentioned(names: Sequence[str], lines: Sequence[str]) -> bool:
    return any(re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", line) for name in names for line in lines)
