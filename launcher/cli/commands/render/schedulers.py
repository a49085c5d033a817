"""Options that only job files for Slurm or Kubernetes have, and their checks."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.launch.prepare import Prepared
from launcher.cli.options.command_types import together
from launcher.cli.options.run import MAX_DEVICES
from launcher.cli.options.types import IntRange
from launcher.cli.run_options import RunOptions, flag, user_environment, words_of_option
from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster
from launcher.engines.render.job import Claim, JobOptions, SecretVariable
from launcher.engines.render.nodes import Nodes, nodes_for, unnamed_cluster
from launcher.engines.render.templates import sbatch
from launcher.engines.slurm_allocation import answer_of
from launcher.engines.slurm_time import seconds_of

MAX_NAME_CHARS = 253  # of an object of Kubernetes, and of a key of a Secret
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_KEY = re.compile(r"(?!\.\.)(?!\.$)[-._A-Za-z0-9]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TAKEN = ("/etc/tlaunch", "/dev/shm")  # noqa: S108 - what is mounted there already


# Those that only a job file for Kubernetes makes use of.
kubernetes_options = together(
    click.option("--image", metavar="NAME", help="kubernetes: image of the containers."),
    click.option(
        "--pvc", metavar="NAME[:MOUNT]",
        help="kubernetes: keep run directories in a PersistentVolumeClaim; without it they end with the pods.  [default MOUNT: "
        "/mnt/NAME]",
    ),
    click.option(
        "--env-from-secret", multiple=True, metavar="VAR=NAME:KEY",
        help="kubernetes: set a variable to KEY of the Secret NAME; the value is not in the file.",
    ),
)  # fmt: skip


def claim_of(text: str | None) -> Claim | None:
    """Return the claim that NAME or NAME:MOUNT stands for.

    Raises:
        UsageError: no claim can have that name, or no volume be there.
    """
    if text is None:
        return None
    name, separator, mount = text.partition(":")
    _check_object(name, "--pvc", "claim")
    place = PurePosixPath(mount if separator else f"/mnt/{name}")
    if not place.is_absolute() or ".." in place.parts or ":" in mount or not mount.isprintable() or place.name == "":
        raise UsageError(f"--pvc: nothing can be mounted at {mount!r}", hint="an absolute path: --pvc data:/data")
    if any(place.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(place) for taken in _TAKEN):
        raise UsageError(
            f"--pvc: {place} would hide, or be hidden by, {' or '.join(_TAKEN)}", hint="mount it elsewhere"
        )
    return Claim(name, str(place))


def secret_variables(texts: Sequence[str], env: tuple[str, ...]) -> tuple[SecretVariable, ...]:
    """Return the variables of texts VAR=NAME:KEY; the last one of a name counts. `env`: the variables of --env.

    Raises:
        UsageError: another form, a name that none can have, or a variable that is decided otherwise.
    """
    found = {}
    given = user_environment(env)
    for text in texts:
        variable, is_pair, source = text.partition("=")
        secret, has_key, key = source.partition(":")
        if not is_pair or not has_key:
            # What stands after the = may be the secret itself: it is not shown.
            raise UsageError(
                "--env-from-secret: this is not VAR=NAME:KEY", hint="for instance --env-from-secret HF_TOKEN=hub:token"
            )
        if not _VARIABLE.fullmatch(variable):
            raise UsageError(f"--env-from-secret {variable!r}: no name of a variable", hint="letters, digits and _")
        user_environment((f"{variable}=",), "--env-from-secret")  # what tlaunch decides is refused
        if variable in given:
            raise UsageError(f"--env and --env-from-secret both say what {variable} is", hint="give one of them")
        _check_object(secret, f"--env-from-secret {variable}", "Secret")
        if not _KEY.fullmatch(key) or len(key) > MAX_NAME_CHARS:
            raise UsageError(
                f"--env-from-secret {variable}: a Secret has no such key", hint="letters, digits, dots, dashes and _"
            )
        found[variable] = SecretVariable(variable, secret, key)
    return tuple(found.values())


def _check_object(name: str, option: str, what: str) -> None:
    if not _OBJECT.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"{option}: {name!r} cannot be the name of a {what} of Kubernetes",
            hint="small letters, digits, dots and dashes, a letter or digit first and last",
        )


MAX_WARNING_S = 65535  # Slurm's own limit
MAX_RESTARTS = 1000
MAX_CPUS = 4096  # of one device
# Of sbatch: what says how many nodes a job has, which, and what of their memory.
_COUNTS_NODES = ("-N", "--nodes")
_NAMES_NODES = ("-w", "--nodelist", "-F", "--nodefile")
_ASKS_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")  # of these it takes one only


# Those that only a job file for Slurm makes use of.
slurm_options = together(
    click.option(
        "--nodes", type=IntRange(1, MAX_DEVICES), metavar="N",
        help="slurm: run on any N nodes, with --devices on each.  [default: 1, or the number of servers in the table]",
    ),
    click.option(
        "--pin-nodes", is_flag=True,
        help="slurm: wait for the nodes named in the rank table.  [default: if the table gives addresses]",
    ),
    click.option(
        "--cpus-per-device", type=IntRange(1, MAX_CPUS), metavar="N",
        help="slurm: share nodes with other jobs, and take N CPUs per device.  [default: whole nodes]",
    ),
    click.option("--time-limit", metavar="TIME", help="slurm: time limit of the job, in minutes or in Slurm's format: 1-12:00:00."),
    click.option(
        "--warn-before", type=IntRange(1, MAX_WARNING_S), default=300, metavar="SECONDS",
        help="slurm: send SIGTERM to ranks this long before the time limit.  [default: 300]",
    ),
    click.option(
        "--restarts", type=IntRange(0, MAX_RESTARTS), default=0, metavar="N",
        help="slurm: submit up to N more jobs, one after the other, until one succeeds.  [default: 0]",
    ),
    click.option("--submit", is_flag=True, help="slurm: submit the script by sbatch, and print the job ID."),
    click.option(
        "--sbatch", multiple=True, metavar="OPTION", help="slurm: add an option for sbatch: --sbatch=--partition=gpu. Repeatable."
    ),
)  # fmt: skip


def asked_nodes(options: RunOptions, nodes: int | None) -> Cluster | None:
    """Return the servers of a job on any `nodes` nodes; None where no number is given.

    Raises:
        UsageError: a rank table says it too, or nothing says how many devices a node has.
    """
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
    """Raise UsageError where Slurm has no such name for a device."""
    if resource is not None and not re.fullmatch(r"[A-Za-z][\w-]*(:[\w.-]+)?", resource, re.ASCII):
        raise UsageError(
            f"--resource {resource!r} is nothing that Slurm could call a device",
            hint="gpu, gpu:a100 or npu, without their number: it follows from the devices of a node",
        )


def asked_of_slurm(prepared: Prepared, wishes: JobOptions, *, pinned: bool) -> Nodes:
    """Return the nodes that a job asks for.

    Raises:
        UsageError: options for sbatch ask for another number of them, which the layout would not fit when the job starts.
    """
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
    """Yield the values of `options`, in each of the forms that sbatch takes: -N2, -N 2, --nodes=2, --nodes 2."""
    words = [word for text in texts for word in shlex.split(text)]
    for word, following in pairwise([*words, ""]):
        name, separator, value = word.partition("=")
        if word.startswith("--") and name in options:
            yield value if separator else following
        elif not word.startswith("--") and word[:2] in options:
            yield word[2:] or following


def directive(text: str) -> str:
    """Return an option for sbatch, quoted so that sbatch understands it as a shell would.

    Raises:
        UsageError: the value is not an option of sbatch.
    """
    if not re.match(r"-(-[a-z]|[A-Za-z])", text) or not text.isprintable():
        raise UsageError(f"--sbatch {text!r} is not an option of sbatch", hint="for instance --sbatch=--partition=gpu")

    try:
        # Quoted anew: to sbatch # begins a comment, and a backslash between single quotes is not literal.
        return " ".join(map(sbatch, shlex.split(text)))
    except ValueError as error:
        raise UsageError(f"--sbatch {text!r}: {error}", hint="sbatch takes quotes in pairs") from None


SLURM_IS_EARLY_S = 60  # at most, with its warning


def check_time_limit(text: str, warn_before_s: int) -> None:
    """Raise UsageError where there is no time to run before the warning. Slurm takes 0 for no limit."""
    try:
        limit_s = seconds_of(text)
    except ValueError:
        raise UsageError(
            f"--time-limit {text!r} is not a time of Slurm's", hint="for instance 90, 36:00:00, 1-12"
        ) from None
    if limit_s and limit_s <= warn_before_s + SLURM_IS_EARLY_S:
        raise UsageError(
            f"--time-limit {text} is {limit_s} s, and ranks would get SIGTERM {warn_before_s} s before it, or up to "
            f"{SLURM_IS_EARLY_S} s sooner: they would never run",
            hint="a longer --time-limit, or a shorter --warn-before",
        )


# As RunOptions calls them.
OF_RUN = (
    "max_restarts", "hang_timeout", "forward_signals", "console", "progress_regex", "join_timeout", "lost_after",
    "engine_options",
)  # fmt: skip
SBATCH_TIMEOUT_S = 60.0
# What sbatch prints where it reaches no slurmctld, whatever is in the script.
NO_CONTROLLER = re.compile(r"(contact|configuration source|resolve).*|controller", re.IGNORECASE)


def words_for_run(context: click.Context, options: dict[str, Any], *, runs: bool, what: str) -> Iterator[str]:
    """Take out of `options` those of the rendered `tlaunch run`, and yield their words; `runs`: the file holds one.

    Raises:
        UsageError: it holds none.
    """
    for name in OF_RUN:
        value = options.pop(name)
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if not runs:
            raise UsageError(f"{flag(name)} is for slurm (--flavor run), and this is {what}")
        yield from words_of_option(name, value)


def submit(script: str) -> str:
    """Submit the script, and return the job's id. Raise TlaunchError with sbatch's own words and exit code."""
    _sbatch(script, "--test-only")
    return _sbatch(script, "--parsable").strip().partition(";")[0]


def _sbatch(script: str, option: str) -> str:
    done = answer_of(("sbatch", option), os.environ, script, timeout_s=SBATCH_TIMEOUT_S)
    if done.returncode:
        hint = None
        if NO_CONTROLLER.search(done.stderr):
            hint = (
                "is slurmctld up, and is this a machine of the cluster? `scontrol ping` asks; -o FILE keeps the script"
            )
        refused = TlaunchError(f"sbatch takes no such script:\n{done.stderr.strip()}", hint=hint)
        refused.has_lines = True
        refused.exit_code = done.returncode
        raise refused
    return done.stdout
