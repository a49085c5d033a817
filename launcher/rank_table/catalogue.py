"""The catalogue of problem codes. Each has a title, a severity, HCCL's error code, and the reader it applies to.

RT1xx  the text is not JSON                 (found by `scanner`)
RT2xx  the JSON is not a table              (found by `formats` and `schema`, RT207 by a rule)
RT3xx  the table contradicts itself
RT4xx  warnings: HCCL continues, users should check
RT5xx  requirements of one reader in addition to HCCL's (only if that reader is named)
RT6xx  requirements of HCCL for one format only (for v2.0: RT371 to RT392)

Codes that are not found by a rule are explained below. A code is never renumbered or reused.
Retired: RT521 to RT524, RT531 to RT535.
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
    """A new member for the JSON object that a finding refers to. It is inserted before an existing member."""

    key: str
    value: str  # as JSON
    before: str  # the key of the existing member


@frozen
class Finding:
    """A problem that a rule found: its position, the message, and the suggested value if there is one."""

    pointer: Pointer
    message: str
    hint: str | None = None
    earlier: Pointer | None = None  # the value that this one conflicts with; its line is added to the message
    at_key: bool = False  # underline the key, not its value
    rewrite: str | None = None  # JSON to replace the value with; safe to apply unless there is a `doubt`
    doubt: str | None = None  # another possible cause, which the rewrite would hide
    addition: Addition | None = None  # a member that is safe to add


Found = tuple[str, Finding]  # a code of the catalogue and its finding
Check = Callable[[Table], Iterator[Finding]]


@frozen
class Entry:
    code: str
    severity: Severity
    title: str
    explanation: str  # a paragraph: the rule and its reason
    hccl_code: str | None = None  # the error code that HCCL reports for the same fault
    check: Check | None = None  # None if the scanner, a format or the schema finds it
    formats: frozenset[Format] | None = None  # None: every format
    consumer: str | None = None  # required only by this reader
    ascend_only: bool = False  # required only by HCCL: a warning on other hardware
    replaces: str | None = None  # the code of a warning that this rule of a consumer makes redundant

    def severity_on(self, chip: Chip) -> Severity:
        return Severity.WARNING if self.ascend_only and not chip.is_ascend else self.severity

    def concerns(self, table: Table) -> bool:
        """Return True if the rule applies to the table's format and to the program that reads the table."""
        return (self.formats is None or table.format in self.formats) and self.consumer in (None, table.consumer)


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
    """Register the decorated check in the catalogue. The check's docstring is the explanation shown to users."""

    def enter_check(check: Check) -> Check:
        if code in CATALOGUE:
            raise ValueError(f"{code} has two meanings: {CATALOGUE[code].title!r} and {title!r}")
        explanation = " ".join((check.__doc__ or "").split())
        if not explanation:
            raise ValueError(f"{code} is not explained")
        requirements = formats, consumer, ascend_only, replaces
        CATALOGUE[code] = Entry(code, severity, title, explanation, hccl_code, check, *requirements)
        return check

    return enter_check


# Accepted by HCCL, but users should check it.
warning = partial(rule, severity=Severity.WARNING, hccl_code=None)


class HcclCode(NamedTuple):
    """An error code of HCCL, with its meaning and what to check after a failed run."""

    title: str
    explanation: str


# First line: code and title.
_HCCL_ENTRIES = """
EI0001 an environment variable or a kind of address is not what HCCL expects
HCCL's message names the environment variable and its value. Only one fault of a rank table causes EI0001: a mix of
IPv4 and IPv6 addresses.

EI0003 a parameter of a collective operation is invalid
HCCL's message names the invalid parameter: a count, a data type, a root or a group of ranks. The rank table is not the
cause. Check the program's collective calls, and the groups of ranks that it creates.

EI0004 the rank table cannot be used
Before CANN 8.3, HCCL reports every fault of the table as EI0004, with the reason in brackets. Since 8.3, EI0004 means
that the file cannot be read, is not JSON, or is not completed in time. Other faults are EI0014 or EI0017.

EI0005 ranks do not agree with each other
The ranks have different tables, or call an operation with different parameters. HCCL compares checksums of the nodes'
tables. To see whether two files would match, use `tlaunch table diff A B`.

EI0006 a connection to another rank timed out
A rank waited for another rank for HCCL_CONNECT_TIMEOUT (120 s by default). The other rank never started, failed
earlier, reads another table, or cannot be reached at its device_ip. Look for the rank that failed first.

EI0009 a transport between two ranks could not be set up
Two ranks found each other, but could not set up a link. Check the network cards of both devices with `hccn_tool -i ID
-net_health -g`, and look for an earlier error.

EI0014 a value in the rank table is invalid
Since CANN 8.3, HCCL's message names the key, its value and the expected value. Before 8.3, HCCL reports invalid values
as EI0004. EI0014 then means that a device_ip is not the address of the device's network card. To see this address, use
`hccn_tool -i ID -ip -g`.

EI0015 the ranks did not gather around the root in time
Without a rank table, ranks find each other through one rank, the root. Some ranks did not connect to the root in time,
or cannot reach it. Look for ranks that never started or failed earlier, and check the root's address and port.

EI0016 the TLS switch differs between devices
TLS must be on for all network cards of a cluster, or off for all of them. To see the setting of a device, use
`hccn_tool -i ID -tls -g`.

EI0017 something is missing in the rank table
HCCL needs a key or a list that the table does not have. Before CANN 8.3 this fault is EI0004.

EI0019 a port cannot be bound
Another process already uses the port, often a rank of an earlier run. HCCL uses the ports 60000 to 60031 on the server
and 16666 on the device, unless environment variables or the table set others.

EJ0001 the device's side of HCCL could not be initialised
Usually an earlier job still uses the device. List the processes on the device with `npu-smi info`. When they have
ended, start your job again.
"""

# Codes of the scanner, the formats and the schema. First line: code, HCCL's code (- for none), severity, title.
_ENTRIES = """
RT101 EI0004 error the file is not UTF-8
HCCL reads tables as UTF-8. On Windows, editors and shell redirections often write UTF-16, which starts with a byte
order mark. A single byte that is not UTF-8 usually comes from a name or a comment in another encoding.

RT102 EI0004 error an unexpected token
JSON consists of objects, lists, strings in double quotes, numbers, true, false and null, separated by commas and
colons. HCCL rejects everything else, for example a typographic quote or a full-width comma.

RT103 EI0004 error a comma with nothing before or after it
A comma separates two entries. Unlike Python and JavaScript, JSON does not allow a comma after the last entry of a list
or an object. This is the most frequent fault of tables that were shortened by hand.

RT104 EI0004 error a comment
JSON does not allow comments (//, /* */ or #). The listings in HCCL's own documentation contain comments and cannot be
used as printed.

RT105 EI0004 error a comma or colon is missing
Commas separate entries, and a colon separates a key from its value. The comma is often missing between lines that were
pasted one after another.

RT106 EI0004 error a string that JSON does not allow
A string must end on the line where it starts. A backslash in it must start one of JSON's escape sequences. Control
characters and lone surrogates are not allowed.

RT107 EI0004 error a word without double quotes
Keys and strings must be in double quotes. Single quotes and bare words are JavaScript or Python, not JSON.

RT108 EI0004 error the file is cut off
The text ends while an object, a list or a string is still open: the copy is incomplete, or its last lines were
deleted.

RT109 - warning text after the table
HCCL reads only the first JSON value, and ignores the rest of the file. Other readers refuse the file. Usually two
tables were written into one file, or a bracket is closed too early.

RT110 EI0004 error nested too deeply
A rank table needs at most 15 levels of lists and objects. A file with hundreds of levels is not a rank table, and can
crash the program that reads it.

RT111 EI0004 error the file is empty
The file contains only white space: the program that writes the table has not run yet, or it failed.

RT112 EI0004 error brackets that do not match
A list starts with [ and ends with ]. An object starts with { and ends with }. Usually a closing bracket is missing some
lines earlier. The message names the line of the bracket that is still open.

RT113 EI0004 error an ellipsis
Three dots mark entries that documentation left out. The table must list every server and every device.

RT114 EI0004 error too many faults
A file with tens of thousands of faults is probably not a rank table. Therefore `tlaunch validate` stops reading the file
and does not report more faults.

RT115 EI0004 error a number that is too large
HCCL parses every number in the file, even under unknown keys. It rejects a number that does not fit into a double, for
example 1e999.

RT116 EI0004 error a program instead of a table
The file is a program, but a rank table was expected.

RT117 EI0004 error data of another kind
The values of a rank table have more than ten characters on average. A file with at least a million shorter values is not
a rank table. tlaunch does not parse the file, because the result would need many times its size in memory.

RT201 EI0004 error the document is not an object
A rank table is one JSON object, and its keys determine the format. A list or a bare value is not a rank table.

RT202 - error a related file that is not a rank table
Some programs describe clusters in files that look like rank tables: vLLM for disaggregated prefill, MindCluster for
groups of servers, MindSpore for several clusters, LLM-DataDist for single links. HCCL does not read these files. tlaunch
reports which program a file is for, and does not check the file further.

RT203 EI0014 error an unknown version
HCCL chooses the format of a table by its `version`: "1.0" for servers with devices, "1.1" for ranks on hosts and
devices, "1.2" for super pods, "2.0" for A5. It refuses any other value.

RT204 EI0017 error a key is missing
HCCL cannot read the entry without this key. The message names the key, and the hint shows what to add.

RT205 EI0017 error a value of the wrong type
Formats before v2.0 write every number as a JSON string; v2.0 writes numbers without quotes. HCCL refuses a value of the
other type.

RT206 EI0014 error an empty list
A table names at least one server, and each server at least one device.

RT208 EI0004 error text after a v2.0 table
HCCL reads a v2.0 file to its end, and refuses text after the table. In files of earlier formats, HCCL ignores text
after the table.

RT401 - warning an unknown key
HCCL ignores unknown keys, so a misspelt optional key has no effect. Each unknown key is reported once, at its first use.

RT405 - warning a key is written twice in one object
Readers use the last of two equal keys and silently ignore the first.

RT406 - warning the file's name does not end in .json
HCCL looks for .json at the end of the path and refuses a file with any other name (EI0004). Other readers accept it.
"""


def _paragraphs(entries: str) -> Iterator[tuple[str, str]]:
    """Yield the first line and the remaining text of each paragraph of `entries`."""
    for paragraph in entries.strip().split("\n\n"):
        head, _, text = paragraph.partition("\n")
        yield head, " ".join(text.split())


for _head, _text in _paragraphs(_ENTRIES):
    _code, _hccl_code, _severity, _title = _head.split(maxsplit=3)
    _known = None if _hccl_code == "-" else _hccl_code
    CATALOGUE[_code] = Entry(_code, Severity(_severity), _title, _text, _known)
HCCL_CODES = {
    code: HcclCode(title, text) for head, text in _paragraphs(_HCCL_ENTRIES) for code, title in [head.split(maxsplit=1)]
}
