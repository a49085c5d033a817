"""Every code that a problem can carry, in one place: what it is called, what HCCL calls it, and who asks for it.

RT1xx  the text is no JSON                  (found by `scanner`)
RT2xx  the JSON is no table                 (found by `formats` and `shape`, RT207 by a rule)
RT3xx  the table contradicts itself
RT4xx  warnings: HCCL continues, users should look
RT5xx  what one reader asks for beyond HCCL (only when that reader is named)
RT6xx  what HCCL asks for in one format only
Where no function in `rules` finds a code, `text_faults` explains it. A code is never given a second meaning, and never
renumbered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import NamedTuple

from launcher.core.frozen import frozen
from launcher.rank_table.model import Table
from launcher.rank_table.positions import Pointer
from launcher.rank_table.profile import Chip
from launcher.rank_table.table_format import Format


class Severity(Enum):
    ERROR = "error"
    WARNING = "warning"


class Addition(NamedTuple):
    """A member for the object at a finding's pointer, which may be put in front of another one of its members."""

    key: str
    value: str  # as JSON
    before: str  # the key of that other member


@frozen
class Finding:
    """The finding of a rule: where, what, and the value to write instead."""

    pointer: Pointer
    message: str
    hint: str | None = None
    earlier: Pointer | None = None  # the other place that this one collides with; its line is added to the message
    at_key: bool = False  # underline the key, not its value
    rewrite: str | None = None  # JSON that may replace the value; safe to apply unless there is a `doubt`
    doubt: str | None = None  # what else may be wrong, which the rewrite would hide
    addition: Addition | None = None  # what may be added without a decision by a person


Found = tuple[str, Finding]  # a code of the catalogue and what was found under it


Check = Callable[[Table], Iterator[Finding]]


@frozen
class Entry:
    """One code of the catalogue."""

    code: str
    severity: Severity
    title: str
    explanation: str  # a paragraph: what the rule says and why
    hccl_code: str | None = None  # the error code that HCCL reports for the same fault
    check: Check | None = None  # None where the scanner, the formats or the shapes find it
    formats: frozenset[Format] | None = None  # None: every format that is read
    consumer: str | None = None  # asked for by this reader alone
    ascend_only: bool = False  # only HCCL asks for it: a warning on other hardware
    replaces: str | None = None  # the code of a warning that is not worth saying beside this rule of a consumer

    def severity_on(self, chip: Chip) -> Severity:
        """Return the severity of the problem for processes on `chip`."""
        return Severity.WARNING if self.ascend_only and not chip.is_ascend else self.severity

    def concerns(self, table: Table) -> bool:
        """Return whether the rule applies to tables of this format, read by this consumer."""
        of_format = self.formats is None or table.format in self.formats
        return of_format and self.consumer in (None, table.consumer)


CATALOGUE: dict[str, Entry] = {}


def rule(
    code: str,
    title: str,
    *,
    hccl_code: str | None = "EI0014",
    severity: Severity = Severity.ERROR,
    formats: frozenset[Format] | None = None,
    consumer: str | None = None,
    ascend_only: bool = False,
    replaces: str | None = None,
) -> Callable[[Check], Check]:
    """Enter a function into the catalogue. Its docstring is the explanation shown to users."""

    def enter_check(check: Check) -> Check:
        explanation = " ".join((check.__doc__ or "").split())
        enter(Entry(code, severity, title, explanation, hccl_code, check, formats, consumer, ascend_only, replaces))
        return check

    return enter_check


# What HCCL accepts, and users should look at.
warning = partial(rule, severity=Severity.WARNING, hccl_code=None)


def enter(entry: Entry) -> None:
    """Add an entry.

    Raises:
        ValueError: its code has a meaning already, or nothing explains it.
    """
    if entry.code in CATALOGUE:
        raise ValueError(f"{entry.code} has two meanings: {CATALOGUE[entry.code].title!r} and {entry.title!r}")
    if not entry.explanation:
        raise ValueError(f"{entry.code} is not explained")
    CATALOGUE[entry.code] = entry


class HcclCode(NamedTuple):
    """An error code of HCCL that users look up after a failed run: its meaning, and where to look next."""

    title: str
    explanation: str


HCCL_CODES = {
    "EI0001": HcclCode(
        "an environment variable or a kind of address is not what HCCL expects",
        "HCCL names the variable and its value in the message. Of a table's faults only one has this code: addresses of "
        "IPv4 and of IPv6 side by side.",
    ),
    "EI0003": HcclCode(
        "a parameter of a collective operation is invalid",
        "A count, a data type, a root or a group of ranks makes no sense to HCCL; the message names it. A valid table does "
        "not cause it: look at the call, and at the groups that the program makes.",
    ),
    "EI0004": HcclCode(
        "the rank table cannot be used",
        "Before CANN 8.3 any fault of the table has this code, also what is EI0014 or EI0017 since; the reason stands in "
        "brackets. Since 8.3 it is left for a file that cannot be read, is no JSON, or is not completed in time.",
    ),
    "EI0005": HcclCode(
        "ranks do not agree with each other",
        "The ranks have different tables, or call an operation with different parameters. HCCL compares a checksum of each "
        "node's table: `tlaunch table diff A B` says whether two files would match.",
    ),
    "EI0006": HcclCode(
        "a connection to another rank timed out",
        "The other rank did not answer within HCCL_CONNECT_TIMEOUT (120 s unless set): it never started, failed earlier, "
        "reads another table, or cannot be reached at its device_ip. Look for the rank that failed first.",
    ),
    "EI0009": HcclCode(
        "a transport between two ranks could not be set up",
        "The ranks found each other and could not agree on a link. Look at the state of both devices' network cards "
        "(`hccn_tool -i ID -net_health -g`) and for another error before this one.",
    ),
    "EI0014": HcclCode(
        "a value in the rank table is invalid",
        "Since CANN 8.3 the message names the variable of the table, its value and what was expected. Before 8.3 such "
        "faults were EI0004, and EI0014 meant that a device_ip is not the address of that device's network card: "
        "`hccn_tool -i ID -ip -g` shows it.",
    ),
    "EI0015": HcclCode(
        "the ranks did not gather around the root in time",
        "Without a table ranks find each other through a root; some did not arrive there in time, or the root cannot be "
        "reached. Look for ranks that never started or failed earlier, and at the root's address and port.",
    ),
    "EI0016": HcclCode(
        "the TLS switch differs between devices",
        "Either all network cards of a cluster use TLS or none: `hccn_tool -i ID -tls -g` shows the setting of each device.",
    ),
    "EI0017": HcclCode(
        "something is missing in the rank table",
        "Since CANN 8.3 a key or a list that HCCL needs, and does not find, has this code; before, it was EI0004.",
    ),
    "EI0019": HcclCode(
        "a port cannot be bound",
        "Another process uses it, often a rank of an earlier run: HCCL takes 60000 to 60031 on the server and 16666 on the "
        "device, unless the environment or the table says otherwise.",
    ),
    "EJ0001": HcclCode(
        "the device's side of HCCL could not be initialised",
        "Usually an earlier job still holds the device, or has only just ended: look for its processes with "
        "`npu-smi info`, and start again when they are gone.",
    ),
}
