"""The way in which the ranks of a MindSpore program find each other: by the rank table alone, or at a scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher.cli.launch.options import RunOptions
from launcher.cli.launch.program import Program
from launcher.core import env
from launcher.core.errors import UsageError
from launcher.core.machine.proc import davinci_ids

# Without the current directory, in which a program's own modules may have names of the library's.
INIT = "import sys; sys.path[:1] = []; from mindspore.communication import init; init()"
_DECIDED = (env.MS_ROLE, env.MS_WORKER_NUM, env.MS_SCHED_HOST, env.MS_SCHED_PORT, env.MS_NODE_ID)


def scheduler_of(options: RunOptions, program: Program, user_env: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the command of the scheduler that the ranks need; None where they need none.

    `auto`: a program that imports MindSpore and calls `init` meets at a scheduler, on any device, as under msrun; with a rank table and
    Ascend devices it reads the table, as `run.sh` has it. A program that is no Python here is started once more as its own
    scheduler, as msrun does, since only it knows which Python it runs.

    Raises:
        UsageError: what is asked for contradicts something else.
    """
    way = options.mindspore
    given = [name for name in _DECIDED if name in user_env]
    if way == "cluster" and given:
        raise UsageError(
            f"--env {given[0]}: with --mindspore cluster tlaunch decides this variable",
            hint="leave it out, or start a scheduler of your own with --mindspore off",
        )
    if way == "cluster" and program.recipe is not None:
        raise UsageError("--mindspore cluster: the bundled trainer uses torch", hint="give a COMMAND after --")
    if way == "rank-table" and options.rank_table is None:
        raise UsageError(
            "--mindspore rank-table: there is no rank table", hint="give --rank-table FILE, or --mindspore cluster"
        )
    if way == "auto":
        by_table = options.rank_table is not None and bool(davinci_ids())
        way = "cluster" if program.uses_mindspore and not (by_table or given) else "off"
    if way != "cluster":
        return None
    python = program.python
    # By the name that was typed, which each server finds on its own ranks' PATH.
    return program.argv if python is None else (python.name or python.interpreter, *python.options, "-c", INIT)


def note_of(options: RunOptions, program: Program, scheduler: tuple[str, ...] | None) -> Iterator[str]:
    """Yield what a person should know who left it to tlaunch how ranks of MindSpore meet."""
    if scheduler is not None and options.mindspore == "auto":
        yield (
            "note: the program calls MindSpore's init(): its ranks meet at a scheduler beside rank 0 (--mindspore cluster; "
            "--mindspore off starts none)"
        )
    elif options.mindspore == "auto" and options.rank_table is not None and davinci_ids() and program.uses_mindspore:
        yield "note: the program calls MindSpore's init(): its ranks meet by the rank table (--mindspore rank-table)"
