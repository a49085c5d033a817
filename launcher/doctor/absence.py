"""Why a server did not come: what `ssh`, mpirun, srun or its own agent said, in words that a person can act upon."""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.core.frozen import frozen


@frozen
class Absence:
    code: str  # stable, as a finding's
    why: str  # a sentence without its subject and its dot
    hint: str | None = None


# The first that fits any line, in this order: what ssh says stands before what engines conclude from it.
_KNOWN: tuple[tuple[str, Absence], ...] = (
    (
        r"host key is known for|host key verification failed|remote host identification has changed",
        Absence(
            "host-key", "ssh does not trust its host key", "`ssh` to it once by hand and compare the key, or `ssh-keyscan`"
        ),
    ),
    (
        r"permission denied \(",
        Absence("login-refused", "ssh is not let in", "`ssh-copy-id`: engines need a login without a password"),
    ),
    (
        r"could not resolve hostname|name or service not known",
        Absence("host-unknown", "its name is unknown here", "look at /etc/hosts and at the table's server_id"),
    ),
    (
        r"port \d+: connection refused",
        Absence("ssh-refused", "its ssh port refuses connections", "is sshd running there? `systemctl status sshd`"),
    ),
    (
        r"port \d+: (connection|operation) timed out|no route to host|network is unreachable|server \S+ not responding",
        Absence("host-unreachable", "ssh gets no answer from it", "is it up, and its network? `ping` tells"),
    ),
    (
        r"no module named .?launcher",
        Absence("tlaunch-missing", "tlaunch is not installed there", "install tlaunch for the same Python on every server"),
    ),
    (
        r"the run's coordinator cannot be reached",
        Absence(
            "no-way-back", "its agent started, but does not reach this machine",
            "a firewall, or a name that means another machine there: every port of this machine must be open to it",
        ),
    ),
    (
        r"(find|access|locate|execve?)\b[^\n]*(executable|python|no such file)|python[\w.]*:? ?(no such|command not|not f)|executable: \S",
        Absence(
            "python-missing", "the Python that runs tlaunch here is not there",
            "have the same environment at the same path on every server",
        ),
    ),
)  # fmt: skip


def absence_of(lines: Sequence[str], ended: str) -> Absence:
    """What the last `lines` of the engine, or of the server's agent, come to. `ended`: how that process ended."""
    known = _known(lines)
    if known is not None:
        line = _telling(lines, known[0])
        return Absence(known[1].code, f"{known[1].why} ({line})", known[1].hint)
    said = f": {lines[-1].strip()}" if lines else ", and said nothing"
    return Absence(
        "did-not-come", f"its agent did not come; {ended}{said}", "try the same start by hand, with `ssh` or `srun`"
    )


def late(seconds: float) -> Absence:
    return Absence(
        "did-not-come", f"its agent did not come within {seconds:g} s (--join-timeout)",
        "is the command started there, and can it reach this machine?",
    )  # fmt: skip


def silent(seconds: float) -> Absence:
    return Absence(
        "no-answer", f"it did not answer within {seconds:g} s",
        "a file system that hangs (a dead NFS server?) looks like that, and so does a network that was cut: `df` there",
    )  # fmt: skip


def lost(why: str) -> Absence:
    return Absence(
        "no-answer", f"its agent came, and was lost: {why}", "its engine or the network ended it: `dmesg` there"
    )


def _known(lines: Sequence[str]) -> tuple[str, Absence] | None:
    text = "\n".join(lines)
    return next(((pattern, absence) for pattern, absence in _KNOWN if re.search(pattern, text, re.IGNORECASE)), None)


def _telling(lines: Sequence[str], pattern: str) -> str:
    fitting = (line.strip() for line in lines if re.search(pattern, line, re.IGNORECASE))
    return next(fitting, lines[-1].strip())
