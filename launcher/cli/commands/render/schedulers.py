"""Options that apply only to job files for Slurm and Kubernetes, and checks of their values."""

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

MAX_NAME_CHARS = 253  # of a Kubernetes object and a key of a Secret
_OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_KEY = re.compile(r"(?!\.\.)(?!\.$)[-._A-Za-z0-9]+", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TAKEN = ("/etc/tlaunch", "/dev/shm")  # noqa: S108 - already mounted


# Options only for Kubernetes.
kubernetes_options = together(
    click.option("--image", metavar="NAME", help="kubernetes: image of the containers."),
    click.option(
        "--pvc", metavar="NAME[:MOUNT]",
        help="kubernetes: keep run directories in the PersistentVolumeClaim NAME. Without --pvc, run directories are deleted with the pods.  "
        "[default MOUNT: /mnt/NAME]",
    ),
    click.option(
        "--env-from-secret", multiple=True, metavar="VAR=NAME:KEY",
        help="kubernetes: set the environment variable VAR from KEY of the Secret NAME. The job file does not contain the value.",
    ),
)  # fmt: skip


def claim_of(text: str | None) -> Claim | None:
    """Parse the value of --pvc, which is NAME or NAME:MOUNT. Raises UsageError if it is invalid."""
    if text is None:
        return None
    name, separator, mount = text.partition(":")
    _check_object(name, "--pvc", "claim")
    place = PurePosixPath(mount if separator else f"/mnt/{name}")
    if not place.is_absolute() or ".." in place.parts or ":" in mount or not mount.isprintable() or place.name == "":
        raise UsageError(f"--pvc: {mount!r} is not a valid mount point", hint="use an absolute path: --pvc data:/data")
    if any(place.is_relative_to(taken) or PurePosixPath(taken).is_relative_to(place) for taken in _TAKEN):
        raise UsageError(
            f"--pvc: {place} overlaps an existing mount: {' or '.join(_TAKEN)}", hint="use another mount point"
        )
    return Claim(name, str(place))


def secret_variables(texts: Sequence[str], env: tuple[str, ...]) -> tuple[SecretVariable, ...]:
    """Parse the values VAR=NAME:KEY of --env-from-secret. The last value for a variable wins.

    Raises UsageError if a value is invalid, or if --env (`env`) or tlaunch already sets the variable.
    """
    found = {}
    given = user_environment(env)
    for text in texts:
        variable, is_pair, source = text.partition("=")
        secret, has_key, key = source.partition(":")
        if not is_pair or not has_key:
            # The text after = may be the secret itself, so it is not shown.
            raise UsageError(
                "--env-from-secret: expected VAR=NAME:KEY",
                hint="for example, use --env-from-secret HF_TOKEN=hub:token",
            )
        if not _VARIABLE.fullmatch(variable):
            raise UsageError(
                f"--env-from-secret {variable!r}: invalid variable name", hint="use letters, digits and `_`"
            )
        user_environment((f"{variable}=",), "--env-from-secret")  # refuse variables that tlaunch sets
        if variable in given:
            raise UsageError(f"--env and --env-from-secret both set {variable}", hint="use one of them")
        _check_object(secret, f"--env-from-secret {variable}", "Secret")
        if not _KEY.fullmatch(key) or len(key) > MAX_NAME_CHARS:
            raise UsageError(
                f"--env-from-secret {variable}: invalid key of a Secret", hint="use letters, digits, `.`, `-` and `_`"
            )
        found[variable] = SecretVariable(variable, secret, key)
    return tuple(found.values())


def _check_object(name: str, option: str, what: str) -> None:
    if not _OBJECT.fullmatch(name) or len(name) > MAX_NAME_CHARS:
        raise UsageError(
            f"{option}: {name!r} is not a valid Kubernetes {what} name",
            hint="use lower-case letters, digits, `.` and `-`; start and end with a letter or digit",
        )


MAX_WARNING_S = 65535  # Slurm's own limit
MAX_RESTARTS = 1000
MAX_CPUS = 4096  # per device
# Options of sbatch for the number of nodes, their names and their memory.
_COUNTS_NODES = ("-N", "--nodes")
_NAMES_NODES = ("-w", "--nodelist", "-F", "--nodefile")
_ASKS_MEMORY = ("--mem", "--mem-per-cpu", "--mem-per-gpu")  # mutually exclusive


# Options only for Slurm.
slurm_options = together(
    click.option(
        "--nodes", type=IntRange(1, MAX_DEVICES), metavar="N",
        help="slurm: run on any N nodes. --devices gives the number of devices per node.  [default: 1, or the number of servers in the rank table]",
    ),
    click.option(
        "--pin-nodes", is_flag=True,
        help="slurm: run on exactly the nodes in the rank table.  [default: yes if the table contains addresses]",
    ),
    click.option(
        "--cpus-per-device", type=IntRange(1, MAX_CPUS), metavar="N",
        help="slurm: share nodes with other jobs, and use N CPUs per device.  [default: exclusive nodes]",
    ),
    click.option("--time-limit", metavar="TIME", help="slurm: time limit of the job, in minutes or in Slurm's format, such as 1-12:00:00."),
    click.option(
        "--warn-before", type=IntRange(1, MAX_WARNING_S), default=300, metavar="SECONDS",
        help="slurm: send SIGTERM to ranks SECONDS before the time limit.  [default: 300]",
    ),
    click.option(
        "--restarts", type=IntRange(0, MAX_RESTARTS), default=0, metavar="N",
        help="slurm: submit up to N more jobs. They run one at a time until a job succeeds.  [default: 0]",
    ),
    click.option("--submit", is_flag=True, help="slurm: submit the script with sbatch, and print the job ID."),
    click.option(
        "--sbatch", multiple=True, metavar="OPTION", help="slurm: pass OPTION to sbatch, for example --sbatch=--partition=gpu. Repeatable."
    ),
)  # fmt: skip


def asked_nodes(options: RunOptions, nodes: int | None) -> Cluster | None:
    """Return a cluster of `nodes` placeholder servers for a job that can run on any nodes, or None without --nodes."""
    if nodes is None:
        return None
    if options.rank_table is not None:
        raise UsageError(
            f"--rank-table and --nodes {nodes} both describe the servers",
            hint="use only one of these options; --nodes and --devices do not need a rank table",
        )
    if options.devices is None:
        raise UsageError(f"--nodes {nodes} needs --devices", hint="add the number of devices per node: --devices 8")
    return unnamed_cluster(nodes, options.devices)


def check_resource(resource: str | None) -> None:
    """Raise UsageError if `resource` is not a valid name of a Slurm generic resource (GRES)."""
    if resource is not None and not re.fullmatch(r"[A-Za-z][\w-]*(:[\w.-]+)?", resource, re.ASCII):
        raise UsageError(
            f"--resource {resource!r} is not a valid Slurm resource name",
            hint="use a name such as gpu, gpu:a100 or npu; tlaunch adds the number of devices per node",
        )


def asked_of_slurm(prepared: Prepared, wishes: JobOptions, *, pinned: bool) -> Nodes:
    """Return the nodes that a job requests. Raises UsageError if --sbatch requests a different number."""
    count = len(prepared.used.servers)
    for value in _values(wishes.sbatch, _COUNTS_NODES):
        if value != str(count):
            raise UsageError(
                f"--sbatch requests {value} nodes, but the job needs {count} for its layout and devices",
                hint="to run on any N nodes with M devices each, use --nodes N --devices M",
            )
    by_hand = any(True for _ in _values(wishes.sbatch, _NAMES_NODES))
    asked = nodes_for(prepared.request.cluster, prepared.used, pinned=pinned, chosen_by_hand=by_hand)
    memory_by_hand = any(True for _ in _values(wishes.sbatch, _ASKS_MEMORY))
    return replace(asked, whole_memory=wishes.cpus_per_device is None and not memory_by_hand)


def _values(texts: Sequence[str], options: tuple[str, ...]) -> Iterator[str]:
    """Yield the values of sbatch options, in all forms that sbatch accepts: -N2, -N 2, --nodes=2, --nodes 2."""
    words = [word for text in texts for word in shlex.split(text)]
    for word, following in pairwise([*words, ""]):
        name, separator, value = word.partition("=")
        if word.startswith("--") and name in options:
            yield value if separator else following
        elif not word.startswith("--") and word[:2] in options:
            yield word[2:] or following


def directive(text: str) -> str:
    """Return an option quoted for an #SBATCH line. Raises UsageError if the text is not an option of sbatch."""
    if not re.match(r"-(-[a-z]|[A-Za-z])", text) or not text.isprintable():
        raise UsageError(
            f"--sbatch {text!r} is not an option of sbatch", hint="for example, use --sbatch=--partition=gpu"
        )

    try:
        # sbatch quotes differently: # starts a comment, and a backslash in single quotes is not literal.
        return " ".join(map(sbatch, shlex.split(text)))
    except ValueError as error:
        raise UsageError(f"--sbatch {text!r}: {error}", hint="close all quotes") from None


SLURM_IS_EARLY_S = 60  # at most, with its warning


def check_time_limit(text: str, warn_before_s: int) -> None:
    """Raise UsageError if --warn-before leaves the ranks no time to run before the time limit."""
    try:
        limit_s = seconds_of(text)
    except ValueError:
        raise UsageError(
            f"--time-limit {text!r} is not a valid Slurm time", hint="use minutes, or a time such as 36:00:00"
        ) from None
    if limit_s and limit_s <= warn_before_s + SLURM_IS_EARLY_S:
        raise UsageError(
            f"--time-limit {text} ({limit_s} s) is too short: --warn-before is {warn_before_s} s, and Slurm can "
            f"send SIGTERM up to {SLURM_IS_EARLY_S} s earlier",
            hint="increase --time-limit, or decrease --warn-before",
        )


# Fields of RunOptions.
OF_RUN = (
    "max_restarts", "hang_timeout", "timeout", "forward_signals", "console", "progress_regex", "join_timeout", "lost_after",
    "engine_options",
)  # fmt: skip
SBATCH_TIMEOUT_S = 60.0
# Errors of sbatch if it cannot reach slurmctld, independent of the script.
NO_CONTROLLER = re.compile(r"(contact|configuration source|resolve).*|controller", re.IGNORECASE)


def words_for_run(context: click.Context, options: dict[str, Any], *, runs: bool, what: str) -> Iterator[str]:
    """Remove the options of the rendered `tlaunch run` command from `options`, and yield them as words.

    Raises UsageError if such an option is given but the file contains no `tlaunch run` (`runs` is false).
    """
    for name in OF_RUN:
        value = options.pop(name)
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if not runs:
            raise UsageError(f"{what} does not support {flag(name)}: remove the option, or use slurm --flavor run")
        yield from words_of_option(name, value)


def submit(script: str) -> str:
    """Submit the script and return the job ID. Raises TlaunchError if sbatch fails."""
    _sbatch(script, "--test-only")
    return _sbatch(script, "--parsable").strip().partition(";")[0]


def _sbatch(script: str, option: str) -> str:
    done = answer_of(("sbatch", option), os.environ, script, timeout_s=SBATCH_TIMEOUT_S)
    if done.returncode:
        hint = None
        if NO_CONTROLLER.search(done.stderr):
            hint = "check that slurmctld runs (`scontrol ping`) and that this machine is in the cluster, or use -o FILE"
        refused = TlaunchError(f"sbatch refuses the script:\n{done.stderr.strip()}", hint=hint)
        refused.has_lines = True
        refused.exit_code = done.returncode
        raise refused
    return done.stdout
