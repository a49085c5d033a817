"""`tlaunch render`: write a file with which another program, such as Slurm or Kubernetes, starts the job."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from launcher.cli.commands.render import schedulers
from launcher.cli.commands.table.table_files import check_output, put, to_stdout, warn
from launcher.cli.launch.prepare import Elsewhere, prepare
from launcher.cli.launch.rank_tables import max_table_bytes
from launcher.cli.options.command_types import TakesCommand
from launcher.cli.options.precedence import given_last
from launcher.cli.options.run import RARE, RUN_GROUPS, RUN_PARAMETERS, devices_option, master_port_option
from launcher.cli.options.types import FILE, NAME_OR_PATH
from launcher.cli.run_options import UNSUPERVISED, RunOptions, check_name_length, flag
from launcher.cli.text.stdout import say
from launcher.core.errors import UsageError
from launcher.core.resources import START_BY_NAME
from launcher.core.text import printable, shell_word
from launcher.engines.assemble import Request
from launcher.engines.render.job import Job, JobOptions, job_of, with_workers
from launcher.engines.render.kinds import KINDS, Kind
from launcher.engines.render.nodes import Nodes, pods_note
from launcher.engines.render.templates import fill
from launcher.preload.masking import masked, masked_argv
from launcher.rank_table import render_table
from launcher.rank_table.table_reader import read_bytes

EPILOG = """\b
Kinds:
  bash        a run.sh: `bash run.sh [SERVER_INDEX [RUN_NAME]]` on each
              server; needs no tlaunch there
  mpirun      a script with one mpirun command, a process per device
  msrun       a script with MindSpore's msrun, for each server
  slurm       a script for sbatch: `tlaunch run` with an agent per node,
              on any --nodes N; --flavor exec: a task per device
  kubernetes  an Indexed Job with a headless Service, a pod per server;
              --flavor mpi: an MPIJob

\b
Examples:
  tlaunch render bash --devices 8 --mp 2 -o run.sh -- python train.py
  tlaunch render mpirun --rank-table rank_table.json -o mpi.sh \\
      -- python train.py
  tlaunch render slurm --nodes 2 --devices 8 --resource gpu --restarts 3 \\
      --time-limit 24:00:00 -o job.sh -- python train.py
  tlaunch render kubernetes --devices 8 --image registry/me/train:1 \\
      --resource nvidia.com/gpu -- python train.py | kubectl apply -f -

Table, layout and options are checked as by `tlaunch run`. Missing files and programs give only a warning, since other
servers may have them. --grace works with bash, kubernetes and slurm; --max-restarts, --hang-timeout, --timeout,
--forward-signals, --console, --progress-regex, --join-timeout, --lost-after and --engine-option work only with slurm
(--flavor run).

Without --master-port, MASTER_PORT is 29500, or the next free port on a single server (bash, kubernetes), 8118 (msrun), a
port derived from the job ID (mpirun, slurm --flavor exec, kubernetes --flavor mpi), or a free port (slurm).

A Slurm job runs on any free nodes, and takes all of their devices and memory. If the rank table contains addresses, or
with --pin-nodes, the job waits for the nodes of the table.

Exit codes: 0 success; 2 wrong usage, a value that the format cannot express, or a file that cannot be read or written;
3 a refused table or layout; with --submit, the exit code of sbatch if it refuses the script.
"""
TAKEN = (
    "rank_table", "max_table_size", "dp", "mp", "pp", "micro_batches", "chip", "allow_idle_devices", "recipe", "config",
    "settings", "data", "source", "target", "init_from", "save_strategy", "profile", "runs_dir", "name", "env", "mindspore", "grace", "help_all", "command", *schedulers.OF_RUN,
)  # fmt: skip
NAMES = ("bash", "mpirun", "msrun", "slurm", "kubernetes")
FLAVORS = ("openmpi", "mpich", "run", "exec", "job", "mpi")
MAX_SLURM_NAME_BYTES = 160  # the run's name adds the time, the job ID, its array index and restarts
# Options that only some kinds use
OF_KIND = {
    "grace": ("bash", "kubernetes", "slurm"),
    "master_port": ("bash", "mpirun", "msrun", "slurm", "kubernetes"),
    "mindspore": ("bash", "mpirun", "slurm", "kubernetes"),
    "image": ("kubernetes",),
    "resource": ("kubernetes", "slurm"),
    **dict.fromkeys(("pvc", "env_from_secret"), ("kubernetes",)),
    **dict.fromkeys(
        ("nodes", "pin_nodes", "cpus_per_device", "time_limit", "warn_before", "restarts", "sbatch", "submit"),
        ("slurm",),
    ),
}
SCRIPT_MODE, FILE_MODE, OWNER_ONLY = 0o755, 0o644, 0o700


@click.command(cls=TakesCommand, epilog=EPILOG)
@click.argument("kind", type=click.Choice(NAMES), metavar="KIND")
@click.option(
    "--flavor",
    type=click.Choice(FLAVORS),
    metavar="NAME",
    help="Variant of the job file. mpirun: openmpi or mpich; slurm: run or exec; kubernetes: job or mpi.  [default: the first of each pair]",
)
@click.option("-o", "--output", type=FILE, metavar="FILE", help="Write to FILE.  [default: stdout]")
@click.option("--force", is_flag=True, help="Replace FILE.")
@click.option("--cwd", type=NAME_OR_PATH, metavar="DIR", help="Ranks' working directory.  [default: current directory]")
@click.option(
    "--resource", metavar="NAME", help="Name of the device resource, such as nvidia.com/gpu or, in Slurm, gpu."
)
@schedulers.kubernetes_options
@schedulers.slurm_options
@devices_option(", all on one server; of slurm: on each of --nodes.")
@master_port_option("by KIND, see below")
def render(kind: str, *, output: Path | None, force: bool, submit: bool, **options: Any) -> None:
    """Write a job file for Slurm, Kubernetes, mpirun, msrun or bash.

    The other options and COMMAND are those of `tlaunch run`.
    """
    check_output(output, force=force)
    wanted = KINDS[kind]
    context = click.get_current_context()
    options = given_last(context, options)
    for name, kinds in OF_KIND.items():
        if kind not in kinds and context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            raise UsageError(f"{flag(name)} is only for {', '.join(kinds)}: leave it out for {kind}")
    wishes = _wishes(wanted, options)
    job = _job(wanted, wishes, options)
    for limit in wanted.limits:
        limit(job)
    text = fill(wanted.templates[wishes.flavor], job)
    if output is not None or not submit:
        _hand_over(text, wanted, job, output, force=force)
    if submit:
        print(schedulers.submit(text))


render.params += [option for option in RUN_PARAMETERS if option.name in TAKEN]
render.groups, render.rare = RUN_GROUPS, RARE


def _wishes(kind: Kind, options: dict[str, Any]) -> JobOptions:
    """Remove from `options` the options that apply only to job files, and return them."""
    warn_before_s = options.pop("warn_before")
    time_limit = options.pop("time_limit")
    if time_limit is not None:
        schedulers.check_time_limit(time_limit, warn_before_s)
    known, flavor = tuple(kind.templates), options.pop("flavor")
    if flavor is None:
        flavor = known[0]
    elif flavor not in known:
        hint = f"use one of {', '.join(known)}" if known != ("",) else "remove --flavor"
        raise UsageError(f"--flavor {flavor}: {kind.name} has no such flavor", hint=hint)
    context = click.get_current_context()
    if flavor == "exec" and context.get_parameter_source("grace") is not ParameterSource.DEFAULT:
        raise UsageError("--grace does not work with --flavor exec: remove --grace, or use --flavor run")
    if kind.name == "slurm":
        schedulers.check_resource(options["resource"])
    what = f"{kind.name} --flavor {flavor}" if flavor else kind.name
    # On a shared file system, other servers have this tlaunch at the same path; an image has its own tlaunch.
    beside = Path(sys.executable).parent / "tlaunch"
    run_options = tuple(schedulers.words_for_run(context, options, runs=flavor == "run", what=what))
    return JobOptions(
        flavor=flavor,
        run_options=run_options,
        tlaunch=str(beside) if beside.exists() and not kind.in_image else "tlaunch",
        image=options.pop("image"),
        resource=options.pop("resource"),
        time_limit=time_limit,
        warn_before_s=warn_before_s,
        restarts=options.pop("restarts"),
        sbatch=tuple(map(schedulers.directive, options.pop("sbatch"))),
        cpus_per_device=options.pop("cpus_per_device"),
        claim=schedulers.claim_of(options.pop("pvc")),
        secret_env=schedulers.secret_variables(options.pop("env_from_secret"), options["env"]),
        mindspore=options["mindspore"],
    )


def _job(kind: Kind, wishes: JobOptions, options: dict[str, Any]) -> Job:
    cwd = options.pop("cwd")
    node_count, pinned = options.pop("nodes"), options.pop("pin_nodes")
    chosen = RunOptions(**options, **UNSUPERVISED)
    if kind.name == "msrun":  # msrun starts its own scheduler
        chosen = replace(chosen, mindspore="off")
    where: Elsewhere = "image" if cwd is not None or kind.in_image else "servers"
    prepared = prepare(chosen, os.environ, elsewhere=where, unnamed=schedulers.asked_nodes(chosen, node_count))
    if kind.name == "slurm":
        nodes = schedulers.asked_of_slurm(prepared, wishes, pinned=pinned)
    else:
        nodes = Nodes(note=pods_note(prepared.used) if kind.name == "kubernetes" else "")
    for note in filter(None, (*prepared.notes, nodes.note)):
        say(note)
    request = _placed(kind, prepared.request, chosen, cwd, wishes)
    name = prepared.name
    if kind.in_image and chosen.name is None:  # derive it from COMMAND, in Kubernetes' syntax
        words = re.sub(r"[^a-z0-9]+", "-", name.lower())
        name = words.lstrip("-0123456789")[:40].strip("-") or "job"
    source, table_text = request.cluster.source, None
    if source is not None and wishes.flavor == "mpi":  # a table whose servers are the job's workers
        table_text = render_table(with_workers(request.cluster, name))
    elif source is not None:
        table_text = read_bytes(source, max_table_bytes()).decode(errors="surrogateescape")
    if kind.name == "slurm":
        check_name_length(name, MAX_SLURM_NAME_BYTES, "the job's part of the run's name")
    return job_of(
        request,
        name,
        wishes,
        nodes,
        dp=chosen.dp,
        master_port=chosen.master_port,
        table_text=table_text,
        reduced_table=next(iter(prepared.files.values()), None),
    )


def _placed(kind: Kind, request: Request, chosen: RunOptions, cwd: str | None, wishes: JobOptions) -> Request:
    """Set the job's working directory and runs directory. With --pvc, the runs directory is on the volume."""
    if cwd is not None or kind.in_image:
        where = Path(cwd or ".")
        absolute = where.is_absolute()  # otherwise relative to the directory of the `cd`
        request = replace(request, cwd=where, runs_dir=where / chosen.runs_dir if absolute else chosen.runs_dir)
    if wishes.claim is not None:
        request = replace(request, runs_dir=Path(wishes.claim.mount) / chosen.runs_dir)
    if kind.in_image and not chosen.command:
        request = replace(request, argv=("python3", *START_BY_NAME, *request.argv[2:]))
    return request


def _hand_over(text: str, kind: Kind, job: Job, output: Path | None, *, force: bool) -> None:
    secrets = [name for name, value in job.user_env.items() if masked(name, value) != value]
    secrets += ["COMMAND"] if masked_argv(job.command) != job.command else []
    if secrets:
        remedy = "; use --env-from-secret VAR=NAME:KEY to keep a value in a Secret" if kind.in_image else ""
        warn(f"the {kind.name} file contains values that look secret: {', '.join(secrets)}{remedy}")
    if output is None:
        to_stdout(text)
        return
    mode = SCRIPT_MODE if kind.is_script else FILE_MODE
    put(output, text, force=force, mode=mode & OWNER_ONLY if secrets else mode)
    say(f"wrote {printable(str(output))}; start the job with `{kind.started_by} {shell_word(str(output))}`")
