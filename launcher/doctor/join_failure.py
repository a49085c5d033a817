"""Why a server did not come: what `ssh`, mpirun, srun or its own agent said, in words that a person can act upon."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.core.frozen import frozen

SERVER = "{server}"  # in a hint: what the table calls the server, or the first of several with the same cause


@frozen
class JoinFailure:
    code: str  # stable, as a finding's
    why: str  # a sentence without its subject and its dot, for one server as for several
    hint: str | None = None  # may name SERVER


# The first that fits any line, in this order: what ssh says stands before what engines conclude from it.
_KNOWN: tuple[tuple[str, JoinFailure], ...] = (
    (
        r"host key is known for|host key verification failed|remote host identification has changed",
        JoinFailure(
            "host-key", "ssh does not trust the host key",
            f"`ssh {SERVER} true` once by hand and compare the key, or `ssh-keyscan {SERVER}`",
        ),
    ),
    (
        r"permission denied \(",
        JoinFailure(
            "login-refused", "ssh is not let in", f"`ssh-copy-id {SERVER}`: engines need a login without a password"
        ),
    ),
    (
        r"could not resolve hostname|name or service not known",
        JoinFailure("host-unknown", "the name is unknown here", "look at /etc/hosts and at the table's server_id"),
    ),
    (
        r"port \d+: connection refused",
        JoinFailure(
            "ssh-refused", "the ssh port refuses connections", "is sshd running there? `systemctl status sshd` tells"
        ),
    ),
    (
        r"port \d+(: (connection|operation))? timed out|timed out during banner|no route to|is unreachable|\S not responding",
        JoinFailure("host-unreachable", "ssh gets no answer", f"is it up, and its network? `ping {SERVER}` tells"),
    ),
    (
        r"no module named .?launcher",
        JoinFailure("tlaunch-missing", "tlaunch is not installed there", "install tlaunch for the same Python on every server"),
    ),
    (
        r"no module named",
        JoinFailure(
            "package-missing", "a package that tlaunch needs is not installed there",
            "install tlaunch there anew, with all that it needs, or have the same environment on every server",
        ),
    ),
    (
        r"not enough slots|more processors requested than permitted|requested nodes? .*(unavailable|busy)",
        JoinFailure(
            "too-few-slots", "there is no slot left for an agent",
            "a hostfile or an allocation must have one for each server; `--engine-option --oversubscribe` is Open MPI's "
            "way round, `--engine-option --overlap` is srun's",
        ),
    ),
    (
        r"the run's coordinator cannot be reached",
        JoinFailure(
            "no-way-back", "the agent started, but does not reach this machine",
            "a firewall, or a name that means another machine there: every port of this machine must be open to it",
        ),
    ),
    (
        r"(unknown|unrecognized) (option|argument)|(illegal|invalid|bad configuration) option",
        JoinFailure(
            "unknown-option", "what starts agents does not know an option that it was given",
            "is --engine-option one of this mpirun or srun? `mpirun --help` lists them",
        ),
    ),
    (
        r"(find|access|locate|execve?)\b[^\n]*(executable|python|no such file)|python[\w.]*:? ?(no such|command not|not f)|executable: \S",
        JoinFailure(
            "python-missing", "the Python that runs tlaunch here is not there",
            "have the same environment at the same path on every server",
        ),
    ),
    (
        r"\b(srun|slurm)[^\n]*exit code:? 127\b",
        JoinFailure(
            "program-missing", "a program that starts tlaunch's agent is not there",
            "have the same environment, with the same Python, at the same path on every server",
        ),
    ),
    (
        r"sh: (line )?\d*:? ?\S+: (no such file|command not found|not found)|exit (code|status):? 127\b",
        JoinFailure(
            "program-missing", "a program that starts tlaunch's agent is not there",
            "have the same mpirun, with all that belongs to it, at the same path on every server",
        ),
    ),
)  # fmt: skip

# Of no cause: how engines ask to be read, and what they say around it.
_BOILERPLATE = re.compile(
    r"\W*$|\W*(usage:|type |try |please |warning: permanently added|for (details|more|help))", re.IGNORECASE
)
_COMPLAINT = re.compile(
    r"\b(error|fatal|fail\w*|cannot|can't|could not|unable|not|no|lost|denied|refused|invalid|killed|missing|abort\w*)\b",
    re.IGNORECASE,
)


def diagnose_output(lines: Sequence[str], ended: str) -> JoinFailure:
    """What the last `lines` of the engine, or of the server's agent, come to. `ended`: how that process ended."""
    for pattern, failure in _KNOWN:
        if (line := _fitting([*lines, ended], pattern)) is not None:
            return JoinFailure(failure.code, f"{failure.why} ({line})", failure.hint)
    said = f": {_telling(lines)}" if lines else ", and said nothing"
    return JoinFailure(
        "did-not-come", f"no agent came; {ended}{said}",
        f"few open files, a full disk or little memory may end a program without a word: `ssh {SERVER} 'ulimit -n; df /tmp'`"
        if not lines and "ended with exit code" in ended
        else f"try to start something there by hand: `ssh {SERVER} true`, or `srun -w {SERVER} true`",
    )  # fmt: skip


def late(seconds: float) -> JoinFailure:
    return JoinFailure(
        "did-not-come", f"no agent came within {seconds:g} s (--join-timeout)",
        "is the command started there, and can it reach this machine?",
    )  # fmt: skip


def hanging(engine: str, seconds: float, lines: Sequence[str]) -> JoinFailure:
    """Of an engine that starts the agent of one server, and does not end."""
    failure = diagnose_output(lines, f"{engine} has not ended within {seconds:g} s")
    if failure.code != "did-not-come":
        return failure
    return replace(
        failure,
        hint=f"try to start something there by hand: `ssh {SERVER} true`, or `srun -w {SERVER} true`; if that ends at once, "
        "a firewall may keep that server from this machine, any port of which must be open to what starts agents there",
    )


def silent(seconds: float) -> JoinFailure:
    return JoinFailure(
        "no-answer", f"no answer within {seconds:g} s",
        "a file system that hangs (a dead NFS server?) looks like that, and so does a network that was cut: `df` there",
    )  # fmt: skip


def lost(why: str) -> JoinFailure:
    return JoinFailure(
        "no-answer", f"the agent came, and was lost: {why}", "the engine or the network ended it: `dmesg` there"
    )


def _fitting(lines: Sequence[str], pattern: str) -> str | None:
    numbers = (number for number, line in enumerate(lines) if re.search(pattern, line, re.IGNORECASE))
    return next((_whole(lines, number) for number in numbers), None)


def _telling(lines: Sequence[str]) -> str:
    """The first line that complains: what an engine says after it is advice. Else the first that is not boilerplate."""
    candidates = [number for number, line in enumerate(lines) if not _BOILERPLATE.match(line)]
    complaints = (number for number in candidates if _COMPLAINT.search(lines[number]))
    return _whole(lines, next(complaints, candidates[0] if candidates else len(lines) - 1))


def _whole(lines: Sequence[str], number: int) -> str:
    """What ends in a colon is told with what follows."""
    line = lines[number].strip()
    return f"{line} {lines[number + 1].strip()}" if line.endswith(":") and number + 1 < len(lines) else line
