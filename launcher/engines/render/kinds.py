"""The kinds of job files, the template of each, and its limits: functions that raise for a value that it cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from launcher.core.errors import RefusedLayoutError, UsageError
from launcher.core.frozen import frozen
from launcher.engines.render.job import Job
from launcher.rank_table.hostfiles import is_host_name

MAX_POD_NAME = 52  # a pod's name gets the job's, an index and five letters, and is a label of 63 at most
_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")


def plain_host_names(job: Job) -> None:
    """Blanks, colons and leading dashes would mean something else to the reader of the file."""
    for server in job.servers:
        check_host_name(server.name)


def no_address_of_ipv6(job: Job) -> None:
    for server in job.servers:
        check_no_colon(server.name)


def check_host_name(name: str) -> None:
    if not is_host_name(name):
        raise UsageError(
            f"server_id {name!r} cannot be written as a host's name here",
            hint="write the server's name or address into the rank table",
        )


def check_no_colon(name: str) -> None:
    if ":" in name:
        raise UsageError(
            f"server_id {name!r}: mpirun takes what follows a colon for a number of slots",
            hint="write the server's name or its IPv4 address into the rank table",
        )


def hosts_hold_runs_of_ranks(job: Job) -> None:
    """Refuse ranks that do not fill the workers of an MPIJob from the first to the last."""
    seen: set[str] = set()
    for block in job.blocks:
        if block.name in seen:
            raise RefusedLayoutError(
                f"the ranks of server {block.name} do not follow each other, which a hostfile cannot say",
                hint="--flavor job takes any order",
            )
        seen.add(block.name)


def no_lone_colon(job: Job, engine: str = "mpirun") -> None:
    if ":" in job.command:
        raise UsageError(
            f"COMMAND has the argument ':', where {engine} would start another program",
            hint="put COMMAND into a script, and give that",
        )


def no_lone_colon_for_srun(job: Job) -> None:
    """Refuse a lone ":" in a COMMAND behind srun, which takes it for a separator."""
    if job.wishes.flavor == "exec":
        no_lone_colon(job, "srun")


def a_shell_exports_secrets(job: Job) -> None:
    """Refuse secrets whose names no shell exports, since they would stand in a command line."""
    for name in job.secrets:
        if not _SHELL_NAME.fullmatch(name):
            raise UsageError(
                f"--env {name}: its value looks secret, and a shell cannot export a variable of that name",
                hint="name it with letters, digits and underscores, or have the program read its value from a file",
            )


def no_equals_sign_in_program(job: Job) -> None:
    if "=" in job.command[0]:
        raise UsageError(
            f"{job.command[0]!r}: `env` would take a program with '=' in its name for a variable",
            hint="call it by another name: a link, or a script",
        )


def msrun_numbers_ranks_alike(job: Job) -> None:
    """Refuse what msrun does not start: it counts ranks and devices from 0 on every server, of which each has as many."""
    count = len(job.servers[0].ranks)
    for server in sorted(job.servers, key=lambda one: one.ranks[0].global_rank):
        first = server.index * count
        for local_rank, rank in enumerate(server.ranks):
            if (len(server.ranks), rank.global_rank, rank.device_id) != (count, first + local_rank, local_rank):
                raise RefusedLayoutError(
                    f"msrun would give device {local_rank} of server {server.name} rank {first + local_rank}, and as many "
                    f"ranks to each server; here device {rank.device_id} has rank {rank.global_rank}",
                    hint="`tlaunch run`, and `tlaunch render bash`, take any table",
                )


def msrun_starts_by_python(job: Job) -> None:
    if job.command[0] not in {"python", "python3", "pytest"} and not job.command[0].endswith(".py"):
        raise UsageError(
            f"msrun would start `python {job.command[0]}`",
            hint="write COMMAND as `python train.py`: msrun takes the first `python` on PATH",
        )


def a_shell_exports_variables(job: Job) -> None:
    for name in job.user_env:
        if not _SHELL_NAME.fullmatch(name):
            raise UsageError(f"--env {name}: a shell cannot export a variable of that name", hint="name it otherwise")


def name_of_a_pod(job: Job) -> None:
    if not _LABEL.fullmatch(job.name) or len(job.name) > MAX_POD_NAME:
        raise UsageError(
            f"--name {job.name!r} cannot be the name of a Kubernetes job",
            hint=f"a letter, then small letters, digits and dashes, {MAX_POD_NAME} at most",
        )


def fits_an_mpi_job(job: Job) -> None:
    if job.wishes.flavor == "mpi":
        a_shell_exports_secrets(job)
        no_lone_colon(job)
        hosts_hold_runs_of_ranks(job)
        counts = {len(server.ranks) for server in job.servers}
        if len(counts) > 1:
            raise RefusedLayoutError(
                f"workers of an MPIJob have equally many slots, and the servers have {min(counts)} to {max(counts)} ranks",
                hint="--flavor job takes any number",
            )


def image_is_given(job: Job) -> None:
    if not job.wishes.image:
        raise UsageError("--image is missing: a pod starts in a container", hint="for instance --image pytorch/pytorch")


@frozen
class Kind:
    name: str
    templates: Mapping[str, str]  # by flavor, the first is the default; one flavor "" if it has no flavors
    started_by: str  # the command that starts a job from a file of that kind, before the file's name
    is_script: bool = False
    in_image: bool = False  # COMMAND is started in a container, whatever this machine has
    limits: tuple[Callable[[Job], None], ...] = ()  # each raises where the kind cannot express a job


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("bash", {"": "bash.sh.j2"}, "bash", is_script=True, limits=(no_equals_sign_in_program,)),
        Kind("mpirun", {"openmpi": "mpirun.openmpi.sh.j2", "mpich": "mpirun.mpich.sh.j2"}, "bash", is_script=True,
             limits=(plain_host_names, no_address_of_ipv6, no_lone_colon, a_shell_exports_secrets)),
        Kind("msrun", {"": "msrun.sh.j2"}, "bash", is_script=True,
             limits=(msrun_numbers_ranks_alike, msrun_starts_by_python, a_shell_exports_variables)),
        Kind("slurm", {"run": "slurm.run.sh.j2", "exec": "slurm.sh.j2"}, "sbatch", is_script=True,
             limits=(plain_host_names, no_lone_colon_for_srun, a_shell_exports_secrets)),
        Kind("kubernetes", {"job": "kubernetes.job.yaml.j2", "mpi": "kubernetes.mpi.yaml.j2"}, "kubectl apply -f", in_image=True,
             limits=(name_of_a_pod, image_is_given, no_equals_sign_in_program, fits_an_mpi_job)),
    )
}  # fmt: skip
