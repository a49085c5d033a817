"""The kinds of job files: the template of each, and functions that raise for values that a kind cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.engines.render.job import Job
from launcher.rank_table.hostfiles import is_host_name

MAX_POD_NAME = 52  # a pod's name appends an index and five letters, and is a label of at most 63 characters
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HINT_NAME = "name it with letters, digits and underscores"
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def plain_host_names(job: Job) -> None:
    """Raise UsageError if a server name would be misread in the job file, for example a name with a space."""
    for server in job.servers:
        check_host_name(server.name)


def no_address_of_ipv6(job: Job) -> None:
    for server in job.servers:
        check_no_colon(server.name)


def check_host_name(name: str) -> None:
    if not is_host_name(name):
        raise UsageError(
            f"server_id {name!r} is not a valid host name",
            hint="put the server's host name or address in the rank table",
        )


def check_no_colon(name: str) -> None:
    if ":" in name:
        raise UsageError(
            f"server_id {name!r} contains a colon, but mpirun expects a slot count after a colon",
            hint="put the server's host name or IPv4 address in the rank table",
        )


def hosts_hold_runs_of_ranks(job: Job) -> None:
    """Raise if a server's ranks are not consecutive, because an MPIJob's hostfile assigns ranks in order."""
    seen: set[str] = set()
    for block in job.blocks:
        if block.name in seen:
            raise RefusedLayoutError(
                f"the ranks of server {block.name} are not consecutive, but a hostfile requires consecutive ranks",
                hint="use --flavor job, which accepts ranks in any order",
            )
        seen.add(block.name)


def no_lone_colon(job: Job, engine: str = "mpirun") -> None:
    if ":" in job.command:
        raise UsageError(
            f"COMMAND has the argument ':', but {engine} uses ':' to separate programs",
            hint="put COMMAND in a script and run the script",
        )


def no_lone_colon_for_srun(job: Job) -> None:
    """Raise if COMMAND has an argument ":", which srun treats as a separator."""
    if job.wishes.flavor == "exec":
        no_lone_colon(job, "srun")


def a_shell_exports_secrets(job: Job) -> None:
    """Raise if a shell cannot export a secret because of its name. The value would then appear on a command line."""
    for name in job.secrets:
        if not _SHELL_NAME.fullmatch(name):
            raise UsageError(
                f"--env {name}: the value looks like a secret and must be exported, but a shell cannot export this name",
                hint=f"{_HINT_NAME}, or let the program read the value from a file",
            )


def no_equals_sign_in_program(job: Job) -> None:
    if "=" in job.command[0]:
        raise UsageError(
            f"{job.command[0]!r}: `env` would read the program as a variable, because the name contains '='",
            hint="start the program from a link or script that has no '=' in its name",
        )


def check_msrun_numbering(job: Job) -> None:
    """Raise if msrun would place ranks differently than the table. msrun numbers ranks and devices consecutively."""
    count = len(job.servers[0].ranks)
    hint = "use `tlaunch run` or `tlaunch render bash`, which accept any table"
    for server in sorted(job.servers, key=lambda one: one.ranks[0].global_rank):
        if len(server.ranks) != count:
            why = f"this table has {count} on {job.servers[0].name} and {len(server.ranks)} on {server.name}"
            raise RefusedLayoutError(f"msrun would start the same number of ranks on each server, but {why}", hint=hint)
        for local_rank, rank in enumerate(server.ranks):
            expected = server.index * count + local_rank
            if (rank.global_rank, rank.device_id) != (expected, local_rank):
                why = f"in this table, device {rank.device_id} has rank {rank.global_rank}"
                raise RefusedLayoutError(
                    f"msrun would start rank {expected} on device {local_rank} of server {server.name}; {why}",
                    hint=hint,
                )


def msrun_starts_by_python(job: Job) -> None:
    if job.command[0] not in {"python", "python3", "pytest"} and not job.command[0].endswith(".py"):
        raise UsageError(
            f"msrun would start `python {job.command[0]}`",
            hint="start COMMAND with `python`, for example `python train.py`; msrun uses the first `python` on PATH",
        )


def a_shell_exports_variables(job: Job) -> None:
    for name in job.user_env:
        if not _SHELL_NAME.fullmatch(name):
            raise UsageError(f"--env {name}: a shell cannot export a variable with this name", hint=_HINT_NAME)


def name_of_a_pod(job: Job) -> None:
    if not _LABEL.fullmatch(job.name) or len(job.name) > MAX_POD_NAME:
        raise UsageError(
            f"--name {job.name!r} is not a valid Kubernetes job name",
            hint=f"use at most {MAX_POD_NAME} characters: lower-case letters, digits and dashes, starting with a letter",
        )


def fits_an_mpi_job(job: Job) -> None:
    if job.wishes.flavor == "mpi":
        a_shell_exports_secrets(job)
        no_lone_colon(job)
        hosts_hold_runs_of_ranks(job)
        counts = {len(server.ranks) for server in job.servers}
        if len(counts) > 1:
            raise RefusedLayoutError(
                f"every worker of an MPIJob must have the same number of slots, but the servers have "
                f"{min(counts)} to {max(counts)} ranks",
                hint="use --flavor job, which accepts a different number of ranks on each server",
            )


def image_is_given(job: Job) -> None:
    if not job.wishes.image:
        raise UsageError("pods need an image, but --image is missing", hint="use for example --image pytorch/pytorch")


@frozen
class Kind:
    name: str
    templates: Mapping[str, str]  # by flavor, default first; a single flavor "" if the kind has no flavors
    started_by: str  # the command that submits such a file, without the file's name
    is_script: bool = False
    in_image: bool = False  # COMMAND runs in a container, so this machine's files do not matter
    limits: tuple[Callable[[Job], None], ...] = ()  # each raises if the kind cannot express a job


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("bash", {"": "bash.sh.j2"}, "bash", is_script=True, limits=(no_equals_sign_in_program,)),
        Kind("mpirun", {"openmpi": "mpirun.openmpi.sh.j2", "mpich": "mpirun.mpich.sh.j2"}, "bash", is_script=True,
             limits=(plain_host_names, no_address_of_ipv6, no_lone_colon, a_shell_exports_secrets)),
        Kind("msrun", {"": "msrun.sh.j2"}, "bash", is_script=True,
             limits=(check_msrun_numbering, msrun_starts_by_python, a_shell_exports_variables)),
        Kind("slurm", {"run": "slurm.run.sh.j2", "exec": "slurm.sh.j2"}, "sbatch", is_script=True,
             limits=(plain_host_names, no_lone_colon_for_srun, a_shell_exports_secrets)),
        Kind("kubernetes", {"job": "kubernetes.job.yaml.j2", "mpi": "kubernetes.mpi.yaml.j2"}, "kubectl apply -f", in_image=True,
             limits=(name_of_a_pod, image_is_given, no_equals_sign_in_program, fits_an_mpi_job)),
    )
}  # fmt: skip
