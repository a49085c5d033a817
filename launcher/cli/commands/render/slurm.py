"""What `tlaunch render slurm` asks Slurm for: nodes, what a job has of them, time, and further options of sbatch."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import click

from launcher.cli.options.run import MOST_DEVICES
from launcher.cli.options.types import Whole
from launcher.core.errors import UsageError

if TYPE_CHECKING:
    from launcher.cli.launch.options import RunOptions
    from launcher.cli.launch.prepare import Prepared
    from launcher.core.records import Cluster
    from launcher.engines.render.job import Wishes
    from launcher.engines.render.nodes import Nodes

Command = TypeVar("Command", bound=Callable[..., Any])

LONGEST_WARNING_S = 65535  # Slurm's own limit
MOST_RESTARTS = 1000
MOST_CPUS = 4096  # of one device
# Of sbatch: what says how many nodes a job has, which, and what of their memory.
_COUNTS_NODES = ("-N", "--nodes")
_NAMES_NODES = ("-w", "--nodelist", "-F", "--nodefile")
_ASKS_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")  # of these it takes one only


def slurm_options(command: Command) -> Command:
    """Those that only a job file for Slurm makes use of."""
    for option in reversed((
        click.option(
            "--nodes", type=Whole(1, MOST_DEVICES), metavar="N",
            help="slurm: any N nodes, with --devices each.  [default: 1, or as many as the rank table has servers]",
        ),
        click.option(
            "--pin-nodes", is_flag=True,
            help="slurm: wait for the nodes that the rank table names.  [default: where it gives addresses too]",
        ),
        click.option(
            "--cpus-per-device", type=Whole(1, MOST_CPUS), metavar="N",
            help="slurm: share nodes with other jobs, and have N CPUs for each device.  [default: whole nodes]",
        ),
        click.option("--time-limit", metavar="TIME", help="slurm: minutes, or as Slurm writes it: 1-12:00:00."),
        click.option(
            "--warn-before", type=Whole(1, LONGEST_WARNING_S), default=300, metavar="SECONDS",
            help="slurm: ranks get SIGTERM so long before the limit.  [default: 300]",
        ),
        click.option(
            "--restarts", type=Whole(0, MOST_RESTARTS), default=0, metavar="N",
            help="slurm: up to N jobs more, one after the other, until one ends well.  [default: 0]",
        ),
        click.option("--submit", is_flag=True, help="slurm: hand the script to sbatch, and print the job's id."),
        click.option(
            "--sbatch", multiple=True, metavar="OPTION", help="slurm: a further option: --sbatch=--partition=gpu."
        ),
    )):  # fmt: skip
        command = option(command)
    return command


def asked_nodes(options: RunOptions, nodes: int | None) -> Cluster | None:
    """The servers of a job on any `nodes` nodes; None where nothing is said of nodes.

    Raises:
        UsageError: a rank table says it too, or nothing says how many devices a node has.
    """
    from launcher.engines.render.nodes import unnamed_cluster

    if nodes is None:
        return None
    if options.rank_table is not None:
        raise UsageError(
            f"--rank-table and --nodes {nodes} both say which servers there are",
            hint="give one of them; --nodes and --devices need no table",
        )
    if options.devices is None:
        raise UsageError(f"--nodes {nodes}: how many devices has each of them?", hint="for instance --devices 8")
    return unnamed_cluster(nodes, options.devices)


def check_resource(resource: str | None) -> None:
    """Raises UsageError where Slurm could not call a device so."""
    if resource is not None and not re.fullmatch(r"[A-Za-z][\w-]*(:[\w.-]+)?", resource, re.ASCII):
        raise UsageError(
            f"--resource {resource!r} is nothing that Slurm could call a device",
            hint="gpu, gpu:a100 or npu, without their number: it follows from the devices of a node",
        )


def asked_of_slurm(prepared: Prepared, wishes: Wishes, *, pinned: bool) -> Nodes:
    """The nodes that a job asks for.

    Raises:
        UsageError: options for sbatch ask for another number of them, which the layout would not fit when the job starts.
    """
    from launcher.engines.render.nodes import nodes_for

    count = len(prepared.used.servers)
    for value in _values(wishes.sbatch, _COUNTS_NODES):
        if value != str(count):
            raise UsageError(
                f"--sbatch asks for {value} nodes, and layout and devices are those of {count}",
                hint="--nodes N with --devices M takes any N nodes of M devices each",
            )
    by_hand = any(True for _ in _values(wishes.sbatch, _NAMES_NODES))
    asked = nodes_for(prepared.request.cluster, prepared.used, pinned=pinned, chosen_by_hand=by_hand)
    memory_by_hand = any(True for _ in _values(wishes.sbatch, _ASKS_MEMORY))
    return replace(asked, whole_memory=wishes.cpus_per_device is None and not memory_by_hand)


def _values(texts: Sequence[str], options: tuple[str, ...]) -> Iterator[str]:
    """What stands for one of `options`, in each of the forms that sbatch takes: -N2, -N 2, --nodes=2, --nodes 2."""
    words = [word for text in texts for word in shlex.split(text)]
    for word, following in pairwise([*words, ""]):
        name, separator, value = word.partition("=")
        if word.startswith("--") and name in options:
            yield value if separator else following
        elif not word.startswith("--") and word[:2] in options:
            yield word[2:] or following


def directive(text: str) -> str:
    """An option for sbatch, written so that sbatch understands it as a shell would.

    Raises:
        UsageError: it is none.
    """
    if not re.match(r"-(-[a-z]|[A-Za-z])", text) or not text.isprintable():
        raise UsageError(f"--sbatch {text!r} is no option of sbatch", hint="for instance --sbatch=--partition=gpu")
    from launcher.engines.render.words import sbatch

    try:
        # Written anew, a word each: to sbatch # begins a comment, and a backslash between single quotes is none.
        return " ".join(map(sbatch, shlex.split(text)))
    except ValueError as error:
        raise UsageError(f"--sbatch {text!r}: {error}", hint="sbatch takes quotes in pairs") from None
