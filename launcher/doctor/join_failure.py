"""Diagnose why a server did not join, by what `ssh`, mpirun, srun or its own agent printed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.core.frozen import frozen

SERVER = "{server}"  # in a hint: what the table calls the server, or the first of several with the same cause
_BY_HAND = f"try to start something there by hand: `ssh {SERVER} true`, or `srun -w {SERVER} true`"


@frozen
class JoinFailure:
    code: str  # stable, as a finding's
    why: str  # a sentence without its subject and its dot, for one server as for several
    hint: str | None = None  # may name SERVER


# Pattern, code, why, hint. The first that fits any line, in this order: what ssh prints stands before what engines
# conclude from it.
_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (
        r"host key is known for|host key verification failed|remote host identification has changed",
        "host-key", "ssh does not trust the host key",
        f"`ssh {SERVER} true` once by hand and compare the key, or `ssh-keyscan {SERVER}`",
    ),
    (
        r"permission denied \(",
        "login-refused", "ssh refuses the login", f"`ssh-copy-id {SERVER}`: engines need a login without a password",
    ),
    (
        r"could not resolve hostname|name or service not known",
        "host-unknown", "the name is unknown here", "check /etc/hosts and the table's server_id",
    ),
    (
        r"port \d+: connection refused",
        "ssh-refused", "the ssh port refuses connections", "is sshd running there? `systemctl status sshd` shows it",
    ),
    (
        r"port \d+(: (connection|operation))? timed out|timed out during banner|no route to|is unreachable|\S not responding",
        "host-unreachable", "ssh gets no answer", f"is it up, and its network? `ping {SERVER}` shows it",
    ),
    (
        (r"no module named .?(launcher|tlaunch)|can't (open file|find '__main__' module in) '\S*/tlaunch'"
        r"|no such file or directory: '\S*/launcher/__init__\.py'"),
        "tlaunch-missing", "tlaunch is not installed there", "install tlaunch for the same Python on every server",
    ),
    (
        r"no module named",
        "package-missing", "a package that tlaunch needs is not installed there",
        "install tlaunch there anew, with all that it needs, or have the same environment on every server",
    ),
    (
        r"not enough slots|more processors requested than permitted|requested nodes? .*(unavailable|busy)",
        "too-few-slots", "there is no slot left for an agent",
        ("a hostfile or an allocation must have one for each server; else `--engine-option --oversubscribe` (Open MPI) or "
        "`--engine-option --overlap` (srun)"),
    ),
    (
        r"the run's coordinator cannot be reached",
        "no-way-back", "the agent started, but does not reach this machine",
        "a firewall, or a name that is another machine's there: every port of this machine must be open to it",
    ),
    (
        r"(unknown|unrecognized) (option|argument)|(illegal|invalid|bad configuration) option",
        "unknown-option", "what starts agents does not know an option that it was given",
        "is --engine-option one of this mpirun or srun? `mpirun --help` lists them",
    ),
    (
        r"(find|access|locate|execve?)\b[^\n]*(executable|python|no such file)|python[\w.]*:? ?(no such|command not|not f)|executable: \S",
        "python-missing", "the Python that runs tlaunch here is not there",
        "have the same environment at the same path on every server",
    ),
    (
        r"\b(srun|slurm)[^\n]*exit code:? 127\b",
        "program-missing", "a program that starts tlaunch's agent is not there",
        "have the same environment, with the same Python, at the same path on every server",
    ),
    (
        r"sh: (line )?\d*:? ?\S+: (no such file|command not found|not found)|exit (code|status):? 127\b",
        "program-missing", "a program that starts tlaunch's agent is not there",
        "have the same mpirun, with all that belongs to it, at the same path on every server",
    ),
)  # fmt: skip

# Lines without a cause: how engines ask to be read, and what they print around it.
_BOILERPLATE = re.compile(
    r"\W*$|\W*(usage:|type |try |please |warning: permanently added|for (details|more|help))", re.IGNORECASE
)
_COMPLAINT = re.compile(
    r"\b(error|fatal|fail\w*|cannot|can't|could not|unable|not|no|lost|denied|refused|invalid|killed|missing|abort\w*)\b",
    re.IGNORECASE,
)


def diagnose_output(lines: Sequence[str], ended: str) -> JoinFailure:
    """Return the cause by the last `lines` of the engine, or of the server's agent. `ended`: how that process ended."""
    searched = [*lines, ended]
    for pattern, code, why, hint in _KNOWN:
        numbers = (number for number, line in enumerate(searched) if re.search(pattern, line, re.IGNORECASE))
        if (number := next(numbers, None)) is not None:
            return JoinFailure(code, f"{why} ({_with_next(searched, number)})", hint)
    if lines:
        # The first line that complains, since what an engine prints after it is advice; else the first with a content.
        candidates = [number for number, line in enumerate(lines) if not _BOILERPLATE.match(line)]
        complaints = (number for number in candidates if _COMPLAINT.search(lines[number]))
        first = next(complaints, candidates[0] if candidates else len(lines) - 1)
        return JoinFailure("did-not-come", f"no agent came; {ended}: {_with_next(lines, first)}", _BY_HAND)
    silent = "few open files, a full disk or little memory may end a program without output: "
    may_lack = f"{silent}`ssh {SERVER} 'ulimit -n; df /tmp'`"
    hint = may_lack if "ended with exit code" in ended else _BY_HAND
    return JoinFailure("did-not-come", f"no agent came; {ended}, without output", hint)


def join_timed_out(seconds: float) -> JoinFailure:
    return JoinFailure(
        "did-not-come", f"no agent came within {seconds:g} s (--join-timeout)",
        "is the command started there, and can it reach this machine?",
    )  # fmt: skip


def engine_hangs(engine: str, seconds: float, lines: Sequence[str]) -> JoinFailure:
    """Return the failure of an engine that starts the agent of one server, and does not end."""
    failure = diagnose_output(lines, f"{engine} has not ended within {seconds:g} s")
    if failure.code != "did-not-come":
        return failure
    return replace(
        failure,
        hint=f"{_BY_HAND}; if that ends at once, a firewall may keep that server from this machine: what starts agents "
        "there must reach every port of it. If that stands still, too, large packets may be lost: `ping -M do -s 1472` "
        "shows whether 1500 bytes pass",
    )


def no_answer(seconds: float) -> JoinFailure:
    return JoinFailure(
        "no-answer", f"no answer within {seconds:g} s",
        "a file system that hangs (a dead NFS server?) looks like that, and so does a network that was cut: `df` there",
    )  # fmt: skip


def connection_lost(why: str) -> JoinFailure:
    return JoinFailure(
        "no-answer", f"the agent came, and was lost: {why}", "the engine or the network ended it: `dmesg` there"
    )


def _with_next(lines: Sequence[str], number: int) -> str:
    """Return the line, with the next one if it ends in a colon."""
    line = lines[number].strip()
    return f"{line} {lines[number + 1].strip()}" if line.endswith(":") and number + 1 < len(lines) else line
