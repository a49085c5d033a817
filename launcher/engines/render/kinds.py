"""The kinds of job files, and the template of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from launcher.core.frozen import frozen
from launcher.engines.render import limits
from launcher.engines.render.job import Job


@frozen
class Kind:
    name: str
    help: str
    templates: Mapping[str, str]  # by flavor, the first is the default; one flavor "" where there are none
    starts: bool = True  # it holds a COMMAND
    is_script: bool = False
    in_image: bool = False  # COMMAND is started in a container, whatever this machine has
    limits: tuple[Callable[[Job], None], ...] = ()  # each raises where the kind cannot express a job


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("bash", "a run.sh for each server to run; needs no tlaunch there", {"": "bash.sh.j2"},
             is_script=True, limits=(limits.no_equals_sign_in_program,)),
        Kind("hostfile", "the servers and their slots", {"openmpi": "hostfile.openmpi.j2", "mpich": "hostfile.mpich.j2"},
             starts=False, limits=(limits.plain_host_names, limits.hosts_hold_runs_of_ranks)),
        Kind("rankfile", "which rank on which server, for Open MPI", {"": "rankfile.j2"},
             starts=False, limits=(limits.plain_host_names,)),
        Kind("mpirun", "one mpirun command, a process of it per device",
             {"openmpi": "mpirun.openmpi.sh.j2", "mpich": "mpirun.mpich.sh.j2"},
             is_script=True, limits=(limits.plain_host_names, limits.no_address_of_ipv6, limits.no_lone_colon)),
        Kind("slurm", "a script for sbatch: `tlaunch run` with an agent per node, or a task per device",
             {"run": "slurm.run.sh.j2", "exec": "slurm.sh.j2"}, is_script=True,
             limits=(limits.plain_host_names, limits.no_lone_colon_for_srun)),
        Kind("kubernetes", "an Indexed Job, a pod per server, or an MPIJob",
             {"job": "kubernetes.job.yaml.j2", "mpi": "kubernetes.mpi.yaml.j2"}, in_image=True,
             limits=(limits.name_of_a_pod, limits.image_is_given, limits.no_equals_sign_in_program,
                     limits.fits_an_mpi_job)),
    )
}  # fmt: skip
