"""Recognise what a file is: a rank table, a list of hosts, a program, or other JSON. Also parses lists of hosts."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from itertools import dropwhile, islice

from launcher.core.errors import TlaunchError, UsageError
from launcher.core.records import Cluster
from launcher.rank_table.document import OTHER_DATA, Document
from launcher.rank_table.hostfiles import is_host_name, parse_hostfile, parse_rankfile
from launcher.rank_table.nodelists import parse_nodelist
from launcher.rank_table.table_format import recognise

# One of these keys is enough; other kinds of files have a server_list, too.
_KEYS = frozenset({"server_count", "group_list", "group_count", "rank_list", "node_list", "deploy_mode"})
_BESIDE_SERVER_LIST = frozenset({"version", "status"})
_WORDS = (b"server_id", b"device_id", b"rank_id")
# Intended in JSON files for more tolerant parsers: a byte order mark, trailing commas, comments, words such as Python's
# NaN, numbers that exceed a double.
_WORD = "RT107"
_OF_DIALECTS = frozenset({"RT101", "RT103", "RT104", _WORD, "RT115"})
_TABLE_NAME = re.compile(r"(?<![a-z])(?:hccl|rank[-_ ]?table)", re.IGNORECASE)
MAX_CERTAIN_BYTES = 6 * 1024 * 1024
MAX_TEXT_BYTES = 16 * 1024 * 1024  # a rankfile of 131,072 ranks has 5 MB
_LINE = re.compile(r"[^\n]+")
_STARTS_JSON = ("{", "[", '"')
_IPV6_HOST = re.compile(r"\[[0-9A-Fa-f]*:[\w.:%]*\](?::\S*|\s+[\w-]+\s*=.*)?", re.ASCII)  # [fe80::1]:2
_NUMBERED_HOSTS = re.compile(r"\[[0-9]+[,-][0-9,-]*\]\S*", re.ASCII)  # [0-3]: numbers as host names
_USER = r"(?:[\w.-]+@)?"  # refused later
_COUNTED = re.compile(rf"(?!-){_USER}(?:[\w.%:-]+\s+[\w-]+\s*=.*|[\w.%-]+:[0-9]+(?:\s.*)?)")  # the count may be faulty
_RANK_LINE = re.compile(r"\s*rank\s*[0-9]+\s*=", re.IGNORECASE)
_NAME = r"[A-Za-z0-9][\w.:%-]*"
_LISTED = r"(?:[\w.:%]|(?<=.)-|\[[0-9][0-9, -]*\])+"
_CERTAIN = {  # the form of each line, narrower than the parser's
    "rankfile": re.compile(rf"rank\s*[0-9]+\s*=\s*{_NAME}\s+slots?\s*=\s*[p0-9][0-9:,;*-]*", re.ASCII | re.IGNORECASE),
    "hostfile": re.compile(
        rf"(?:{_NAME}|\[[0-9A-Fa-f:.]*\](?::[0-9]+)?)(?:\s+(?:max_)?(?:slots|cpus?|count)\s*=\s*[0-9]+)*", re.ASCII
    ),
    "nodelist": re.compile(rf"{_LISTED}(?:\s*,\s*{_LISTED})*", re.ASCII),
}
_LIST = re.compile(r"(?!-)[\w.%:@-]*[\[,]")  # a fault after the first name or bracket is reported later
_NAMES_HOSTS = re.compile(r"[A-Za-z.:].*[0-9]|localhost|[0-9]+\.[0-9]+\.|\[", re.ASCII)  # single words may be anything
_MAX_HEAD_BYTES = 64 * 1024  # enough to recognise a program
# A statement that only programs start with.
_STATEMENT = re.compile(
    r"import[ ]+[\w.]+(?:[ ]*,|[ ]+as\b|[ \t]*(?:[;#\r\n]|\Z))|from[ ]+[\w.]+[ ]+import\b|def[ ]+\w+\(|class[ ]+\w+[(:]|@\w"
)
_DOCSTRING = re.compile(r"[rR]?(\"{3}|'{3})")


def named_like_table(name: str) -> bool:
    """Return True if a file's name looks like the name of a rank table.

    >>> [named_like_table(name) for name in ("rank_table_8pcs.json", "jobstart_hccl.json", "package.json")]
    [True, True, False]
    """
    return _TABLE_NAME.search(name) is not None


def looks_like_table(data: bytes, document: Document) -> bool:
    """Return True if `document`, parsed from `data`, may be a rank table, a damaged table, or a related file.

    Empty and truncated files count: they may be damaged tables. If the only faults are extensions of other JSON
    dialects, the text must also contain the ids that tables consist of.
    """
    if document.faults:
        codes = {fault.code for fault in document.faults}
        on_purpose = codes <= _OF_DIALECTS and (document.checkable or _WORD in codes)  # only words unread
        if not (on_purpose or OTHER_DATA in codes) or mentions_ids(data):
            return True
    if not isinstance(document.value, dict):
        return False
    found, keys = recognise(document.value), document.value.keys()
    if found is not None and not found.is_rank_table:
        return True
    return bool(keys & _KEYS) or ("server_list" in keys and bool(keys & _BESIDE_SERVER_LIST))


def mentions_ids(data: bytes) -> bool:
    """Return True if the bytes contain server_id, device_id or rank_id, in any encoding."""
    letters = data.replace(b"\0", b"")  # UTF-16 and UTF-32 too
    return any(word in letters for word in _WORDS)


def recognise_plain(data: bytes) -> str | None:
    """Return the kind of a list of hosts: "hostfile", "rankfile" or "nodelist". Return None for other texts.

    A single line with several hosts, brackets or one name is a node list. Several lines of names are a hostfile.
    """
    text = _text(data)
    first = next(_meaningful(text or ""), None)
    if text is None or first is None or "\0" in text:
        return None
    if _IPV6_HOST.fullmatch(first):
        return "hostfile"
    if text.lstrip().startswith(_STARTS_JSON) and _NUMBERED_HOSTS.fullmatch(first) is None:
        return None
    if _RANK_LINE.match(first):
        return "rankfile"
    return "hostfile" if _COUNTED.fullmatch(first) else _list_of_names(first, text)


def _list_of_names(first: str, text: str) -> str | None:
    """Return "hostfile" for lines with one name each, "nodelist" for a node list, or None for any other text."""
    if "," in first or "[" in first:
        return "nodelist" if _LIST.match(first) else None
    if not all(is_host_name(re.sub(f"^{_USER}", "", line)) for line in _meaningful(text)):
        return None
    if next(islice(_meaningful(text), 1, None), None) is not None:
        return "hostfile"
    return "nodelist" if _NAMES_HOSTS.match(first) else None


def certainly_plain(data: bytes) -> str | None:
    """Return the kind from `recognise_plain` if every line of the text is valid for this kind, else None.

    The hosts are not expanded, since a line may name a million devices. Texts larger than a rankfile of 131,072 ranks
    are skipped.
    """
    text = _text(data) if len(data) <= MAX_CERTAIN_BYTES else None
    first = next(_meaningful(text or ""), None)
    if text is None or first is None or _NAMES_HOSTS.match(first) is None:
        return None
    kind = recognise_plain(data)
    return kind if kind and all(map(_CERTAIN[kind].fullmatch, _meaningful(text))) else None


def program_kind(data: bytes, suffix: str) -> str | None:
    """If the text or the file suffix looks like a program, return a phrase such as "a Python script", else None."""
    head = data[:_MAX_HEAD_BYTES].removeprefix(codecs.BOM_UTF8).decode(errors="replace").lstrip()
    if head.startswith("#!"):
        return f'a script that starts with "{head.splitlines()[0][:40]}"'
    is_called_one = suffix == ".py" and not head.startswith(_STARTS_JSON[:2])
    code = _without_comments(head)
    if opened := _DOCSTRING.match(code):
        code = _without_comments(code[opened.end() :].partition(opened[1])[2])
    return "a Python script" if is_called_one or _STATEMENT.match(code) else None


def _without_comments(text: str) -> str:
    lines = dropwhile(lambda line: not line.strip() or line.startswith("#"), text.split("\n"))
    return "\n".join(lines).lstrip()


def read_plain(data: bytes, kind: str, name: str, devices: int | None = None) -> tuple[Cluster, tuple[str, ...]]:
    """Parse a list of hosts of the given `kind`. Return the cluster and notes. Messages refer to the list as `name`.

    Raises:
        TlaunchError: a line cannot be parsed, or the text is too large or not UTF-8.
        UsageError: `devices` is given for a text that has its own counts.
    """
    text = _text(data)
    if text is None:
        raise TlaunchError(f"{name} is not UTF-8, or larger than {MAX_TEXT_BYTES >> 20} MiB", hint="check the file")
    if kind == "rankfile":
        if devices is not None:
            raise UsageError(f"--devices {devices}: a rankfile already assigns every rank", hint="remove --devices")
        return parse_rankfile(text, name)
    if kind == "hostfile":
        return parse_hostfile(text, name, devices)
    notes = () if devices else ("a node list has no counts: one device per host; use --devices N for N per host",)
    return parse_nodelist(text, name, devices or 1), notes


def _meaningful(text: str) -> Iterator[str]:
    """Remove the comments from a text, and yield the lines that are not empty."""
    return (line for raw in _LINE.finditer(text) if (line := raw[0].partition("#")[0].strip()))


def _text(data: bytes) -> str | None:
    if len(data) > MAX_TEXT_BYTES:
        return None
    try:
        return data.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError:
        return None
