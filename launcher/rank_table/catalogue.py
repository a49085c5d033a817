"""Every code that a problem can carry, in one place: what it is called, what HCCL calls it, and who asks for it.

RT1xx  the text is not JSON                 (found by `scanner`)
RT2xx  the JSON is not a table              (found by `formats` and `schema`, RT207 by a rule)
RT3xx  the table contradicts itself
RT4xx  warnings: HCCL continues, users should look
RT5xx  what one reader asks for beyond HCCL (only when that reader is named)
RT6xx  what HCCL asks for in one format only (of v2.0: RT371 to RT392)
Where no function in `rules` or in a format's `rules.py` finds a code, it is explained below. A code is never given a second meaning, and never
renumbered. Retired: RT521 to RT524, RT531 to RT535.
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
        if code in CATALOGUE:
            raise ValueError(f"{code} has two meanings: {CATALOGUE[code].title!r} and {title!r}")
        explanation = " ".join((check.__doc__ or "").split())
        if not explanation:
            raise ValueError(f"{code} is not explained")
        CATALOGUE[code] = Entry(
            code, severity, title, explanation, hccl_code, check, formats, consumer, ascend_only, replaces
        )
        return check

    return enter_check


# What HCCL accepts, and users should look at.
warning = partial(rule, severity=Severity.WARNING, hccl_code=None)


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


# The codes that no rule finds: the scanner, the formats and the schema do. Of each: itself, HCCL's own code (- for none), the severity and the title; then the explanation.
_ENTRIES = """
RT101 EI0004 error the file is not UTF-8
HCCL reads tables as UTF-8. Editors on Windows save UTF-16, and shells there redirect into it; both start with a byte
order mark that gives them away. A single byte that is not UTF-8 usually comes from a name or comment in another
encoding.

RT102 EI0004 error something stands where JSON expects something else
JSON knows objects, lists, strings in double quotes, numbers, true, false and null, with commas and colons between
them. Anything else at such a place, a typographic quote or a full-width comma for instance, ends the reading of the
table.

RT103 EI0004 error a comma with nothing before or after it
A comma separates two entries. After the last entry of a list or an object there is none, although Python and
JavaScript allow it; this is the most frequent fault of tables that were shortened by hand.

RT104 EI0004 error a comment
JSON has no comments, neither // nor /* */ nor #. The listings in HCCL's own documentation carry them and cannot be
used as they are printed.

RT105 EI0004 error a comma or colon is missing
Entries are separated by commas, a key from its value by a colon. Lines that were copied under each other often lack
the comma between them.

RT106 EI0004 error a string that JSON does not allow
A string ends on the line where it starts, and a backslash in it starts one of a few escapes. Control characters and
halves of surrogate pairs may not stand in it.

RT107 EI0004 error a word without double quotes
Keys and texts stand in double quotes; single quotes and bare words are JavaScript or Python, not JSON.

RT108 EI0004 error the file is cut off
The text ends while an object, a list or a string is still open: the copy was not complete, or its last lines were
deleted.

RT109 - warning text after the table
HCCL stops at the end of the first JSON value and ignores what follows; every other reader refuses the file. Usually
two tables were written into one file, or a bracket is closed too early.

RT110 EI0004 error nested too deeply
No rank table of any format needs more than 15 levels of lists and objects. A text with hundreds of them is no table,
and some readers crash on it.

RT111 EI0004 error the file is empty
The file has no content except white space: the program that writes the table has not run yet, or it failed.

RT112 EI0004 error brackets that do not match
A list opened by [ is closed by ], an object opened by { by }. Usually a closing bracket is missing some lines
earlier; the message names the line of the bracket that is still open.

RT113 EI0004 error an ellipsis
Three dots stand where documentation left entries out. The table must name every server and every device.

RT114 EI0004 error too many faults
Faults are reported line by line. A text with tens of thousands of them is no rank table, and the rest of it is not
read.

RT115 EI0004 error a number that is too large
HCCL reads every number of the file as it comes, also under keys that it does not know, and stops at one that is
larger than a double can be, such as 1e999.

RT116 EI0004 error a program instead of a table
The file is a program, not JSON. It was given where a rank table is expected.

RT117 EI0004 error data of another kind
A rank table spends more than ten characters on each of its values. A text with a million values or more that are
shorter is a list of numbers or words, and is not read: as objects in memory it would be many times as large.

RT201 EI0004 error the document is not an object
A rank table is one JSON object whose keys say which format it is written in. A list or a bare value is not a rank table.

RT202 - error a related file that is not a rank table
Several programs around HCCL describe clusters in files that look like rank tables: vLLM for disaggregated prefill,
MindCluster for groups of servers, MindSpore for several clusters, LLM-DataDist for single links. HCCL reads none of
them, so they are named here and checked no further.

RT203 EI0014 error an unknown version
HCCL decides by the text of `version` how to read a table: "1.0" for servers with devices, "1.1" for ranks on hosts
and devices, "1.2" for super pods, "2.0" for A5. Every other text is refused.

RT204 EI0017 error a key is missing
Without this key HCCL cannot read the entry. The message says which key, the hint what to add.

RT205 EI0017 error a value of the wrong type
The formats before v2.0 write every number as a JSON string, v2.0 writes numbers as numbers; HCCL refuses one where it
asks for the other.

RT206 EI0014 error an empty list
A table names at least one server, and each server at least one device.

RT208 EI0004 error text after a v2.0 table
HCCL's reader of the formats before v2.0 stops at the end of the first JSON value. That of v2.0 reads the file to its
end and refuses what follows the table.

RT401 - warning an unknown key
HCCL ignores keys that it does not know, so a misspelt optional key is silently lost. Each unknown key is named
once, at its first use.

RT405 - warning a key is written twice in one object
Readers take the last of two equal keys and silently ignore the first.

RT406 - warning the file's name does not end in .json
HCCL looks for .json at the end of the path and refuses a file of any other name (EI0004). Other readers do not mind.
"""

for _paragraph in _ENTRIES.strip().split("\n\n"):
    _head, _, _explanation = _paragraph.partition("\n")
    _code, _hccl_code, _severity, _title = _head.split(maxsplit=3)
    _known = None if _hccl_code == "-" else _hccl_code
    CATALOGUE[_code] = Entry(_code, Severity(_severity), _title, " ".join(_explanation.split()), _known)
