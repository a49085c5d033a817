"""Judge the facts that servers reported. Equal evidence gives equal findings, in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from launcher.doctor.finding import Evidence, Finding, Rule, Severity, in_order
from launcher.doctor.rules import names, reach, resources, software
from launcher.doctor.rules import network_rules as network

RULES: tuple[Rule, ...] = (*reach.RULES, *names.RULES, *network.RULES, *software.RULES, *resources.RULES)
_SERVERS = "\0"  # placeholder for the servers in a message


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings of all rules, worst first, then by topic."""
    return in_order(_merged((finding for rule in RULES for finding in rule(evidence)), evidence))


def _merged(found: Iterable[Finding], evidence: Evidence) -> Iterator[Finding]:
    """Merge findings that differ only in their servers, since many servers may have the same problem."""
    alike: dict[tuple[str, Severity, str | None, str], list[Finding]] = {}
    for one in found:
        words = one.message.replace(evidence.named(one.servers), _SERVERS) if len(one.servers) == 1 else one.message
        alike.setdefault((one.code, one.severity, one.hint, words), []).append(one)
    for (*_, words), those in alike.items():
        servers = tuple(sorted({server for one in those for server in one.servers}))
        message = those[0].message if len(those) == 1 else words.replace(_SERVERS, evidence.named(servers))
        yield replace(those[0], servers=servers, message=message)
