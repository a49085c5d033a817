"""Diagnose why a server did not join, from the output of `ssh`, mpirun, srun or its agent."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from launcher.core.frozen import frozen

SERVER = "{server}"  # in a hint: the server's name in the table; the first one of several with the same cause
_BY_HAND = f"try to start a program on the server by hand: `ssh {SERVER} true`, or `srun -w {SERVER} true`"


@frozen
class JoinFailure:
    code: str  # stable, like a finding's
    why: str  # follows the name of the server or servers in a message
    hint: str | None = None  # may contain SERVER


# Pattern, code, why, hint. The first pattern that matches any line is used: errors of ssh come before errors of engines,
# which are consequences.
_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (
        r"host key is known for|host key verification failed|remote host identification has changed",
        "host-key", "ssh does not trust the host key",
        f"run `ssh {SERVER} true` once by hand and compare the key, or use `ssh-keyscan {SERVER}`",
    ),
    (
        r"permission denied \(",
        "login-refused", "ssh refuses the login",
        f"run `ssh-copy-id {SERVER}`, since engines need a login without a password",
    ),
    (
        r"could not resolve hostname|name or service not known",
        "host-unknown", "this machine cannot resolve the name", "check /etc/hosts and the table's server_id",
    ),
    (
        r"port \d+: connection refused",
        "ssh-refused", "the ssh port refuses connections", "check sshd there: `systemctl status sshd`",
    ),
    (
        r"port \d+(: (connection|operation))? timed out|timed out during banner|no route to|is unreachable|\S not responding",
        "host-unreachable", "ssh gets no answer", f"check the machine and its network: `ping {SERVER}`",
    ),
    (
        (r"no module named .?(launcher|tlaunch)|can't (open file|find '__main__' module in) '\S*/tlaunch'"
        r"|no such file or directory: '\S*/launcher/__init__\.py'"),
        "tlaunch-missing", "tlaunch is not installed there", "install tlaunch for the same Python on every server",
    ),
    (
        r"no module named",
        "package-missing", "a package that tlaunch needs is not installed there",
        "install tlaunch there again, with its dependencies, or use the same environment on every server",
    ),
    (
        r"not enough slots|more processors requested than permitted|requested nodes? .*(unavailable|busy)",
        "too-few-slots", "there is no free slot for an agent",
        ("provide one slot for each server in the hostfile or allocation, or use `--engine-option --oversubscribe` (Open "
        "MPI) or `--engine-option --overlap` (srun)"),
    ),
    (
        r"the run's coordinator cannot be reached",
        "no-way-back", "the agent started, but cannot connect to this machine",
        "check the firewall and the name of this machine there: every port of this machine must be open to it",
    ),
    (
        r"(unknown|unrecognized) (option|argument)|(illegal|invalid|bad configuration) option",
        "unknown-option", "the program that starts agents does not know an option",
        "check --engine-option: `mpirun --help` lists the options",
    ),
    (
        r"(find|access|locate|execve?)\b[^\n]*(executable|python|no such file)|python[\w.]*:? ?(no such|command not|not f)|executable: \S",
        "python-missing", "the Python that runs tlaunch on this machine is missing there",
        "install the same environment at the same path on every server",
    ),
    (
        r"\b(srun|slurm)[^\n]*exit code:? 127\b",
        "program-missing", "a program that starts tlaunch's agent is missing there",
        "install the same environment, with the same Python, at the same path on every server",
    ),
    (
        r"sh: (line )?\d*:? ?\S+: (no such file|command not found|not found)|exit (code|status):? 127\b",
        "program-missing", "a program that starts tlaunch's agent is missing there",
        "install the same mpirun, with all its files, at the same path on every server",
    ),
)  # fmt: skip

# Lines without a cause: usage, advice and separators of engines.
_BOILERPLATE = re.compile(
    r"\W*$|\W*(usage:|type |try |please |warning: permanently added|for (details|more|help))", re.IGNORECASE
)
_COMPLAINT = re.compile(
    r"\b(error|fatal|fail\w*|cannot|can't|could not|unable|not|no|lost|denied|refused|invalid|killed|missing|abort\w*)\b",
    re.IGNORECASE,
)


def diagnose_output(lines: Sequence[str], ended: str) -> JoinFailure:
    """Return the reason why a server did not join, based on the last output `lines` of its engine or agent."""
    searched = [*lines, ended]
    for pattern, code, why, hint in _KNOWN:
        numbers = (number for number, line in enumerate(searched) if re.search(pattern, line, re.IGNORECASE))
        if (number := next(numbers, None)) is not None:
            return JoinFailure(code, f"{why} ({_with_next(searched, number)})", hint)
    if lines:
        # The first line with an error, since engines print advice after it; else the first line with content.
        candidates = [number for number, line in enumerate(lines) if not _BOILERPLATE.match(line)]
        complaints = (number for number in candidates if _COMPLAINT.search(lines[number]))
        first = next(complaints, candidates[0] if candidates else len(lines) - 1)
        return JoinFailure("did-not-come", f"no agent connected; {ended}: {_with_next(lines, first)}", _BY_HAND)
    silent = "check the limit of open files, the disk and the memory there: "
    may_lack = f"{silent}`ssh {SERVER} 'ulimit -n; df /tmp; free'`"
    hint = may_lack if "ended with exit code" in ended else _BY_HAND
    return JoinFailure("did-not-come", f"no agent connected; {ended}, without output", hint)


def join_timed_out(seconds: float) -> JoinFailure:
    return JoinFailure(
        "did-not-come", f"no agent connected within {seconds:g} s (--join-timeout)",
        "check that `tlaunch` is running there, and that it can connect to this machine",
    )  # fmt: skip


def engine_hangs(engine: str, seconds: float, lines: Sequence[str]) -> JoinFailure:
    """Return the failure for an engine such as srun that hangs instead of starting a server's agent."""
    failure = diagnose_output(lines, f"{engine} did not exit within {seconds:g} s")
    if failure.code != "did-not-come":
        return failure
    return replace(
        failure,
        hint=f"{_BY_HAND}. If the program starts, check that the firewall lets the server connect to every port of this "
        "machine. If the command hangs too, test for lost 1500-byte packets with `ping -M do -s 1472`",
    )


def no_answer(seconds: float) -> JoinFailure:
    return JoinFailure(
        "no-answer", f"no answer within {seconds:g} s",
        "run `df` there: a file system may hang (NFS), or the network may be interrupted",
    )  # fmt: skip


def connection_lost(why: str) -> JoinFailure:
    return JoinFailure(
        "no-answer",
        f"the connection to the agent was lost: {why}",
        "check the engine and the network, and run `dmesg` there",
    )


def _with_next(lines: Sequence[str], number: int) -> str:
    """Return the line at index `number`. If it ends in a colon, append the next line."""
    line = lines[number].strip()
    return f"{line} {lines[number + 1].strip()}" if line.endswith(":") and number + 1 < len(lines) else line
