"""Read the `.sgm` files of the WMT and IWSLT evaluations.

They are SGML in name but loosely written: bare `&` and `<` next to entities, tags in either case, attributes with any
or no quotes, several sets in one file. An XML parser rejects them, and an HTML parser takes `AT&T` or `a <b` for
markup. Therefore this reader looks only for the tags that carry structure; everything else in a segment is text.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from html import unescape
from html.entities import html5
from pathlib import Path

from launcher.core.errors import UnreadableError
from launcher.core.frozen import frozen
from launcher.corpus.text_files import normalised, read_lines

# A well-formed tag (attributes only as NAME=VALUE, so "a <b and c> d" stays text), a comment or a declaration. Also the
# start of a malformed structural tag, since ignoring it would silently lose a sentence.
MARKUP = re.compile(
    r"""<!--.*?-->
    |<[!?][^>]*>
    |<(?P<close>/?)(?P<name>[A-Za-z][\w:.-]*)
     (?P<attributes>(?:\s+[\w:.-]+\s*=\s*(?:"[^"]*"|'[^']*'|[^\s"'<>]+))*)\s*/?>
    |(?P<broken></?(?:doc|seg|srcset|refset|tstset)(?![\w:.-]))""",
    re.DOTALL | re.VERBOSE | re.IGNORECASE,
)
ATTRIBUTE = re.compile(r"""([\w:.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'<>]+))""")
ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9a-fA-F]+|[A-Za-z][A-Za-z0-9]*);")

Key = tuple[str, str]  # doc ID, segment ID


@frozen
class Segment:
    """One sentence of a document, with resolved entities and normalised whitespace. It may be empty."""

    doc_id: str
    segment_id: str
    text: str
    line: int  # of its opening tag, from 1


@frozen
class SgmFile:
    """The content of one `.sgm` file: at least one segment, in the order of the file."""

    path: Path
    segments: Mapping[Key, Segment]
    language: str | None  # as written: "fr", "French"; None if the file says "any" or nothing
    set_id: str | None


def read_sgm(path: Path) -> SgmFile:
    """Read the sentences of an `.sgm` file (gzip or plain), by document ID and segment ID.

    A doc or segment without an ID is identified by its position: "#1", "#2", ...

    Raises:
        UnreadableError: the file is missing, unreadable or not UTF-8, a tag is damaged, a segment is unclosed or
            repeated, or there is no segment. Errors in the content name the line.
    """
    reading = _Reading(path, "\n".join(read_lines(path)))
    for markup in MARKUP.finditer(reading.text):
        reading.read(markup)
    return reading.finish()


class _Reading:
    """The state of the parser between two tags: the finished segments, and the open segment if there is one."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self.segments: dict[Key, Segment] = {}
        self.language: str | None = None
        self.set_id: str | None = None
        self._newlines = [found.start() for found in re.finditer("\n", text)]
        self._doc_count = 0
        self._doc_id = "#0"  # segments before any <doc>
        self._segment_count = 0  # in this doc
        self._open: tuple[str, int, int] | None = None  # segment ID, where its tag starts, where its text starts

    def read(self, markup: re.Match[str]) -> None:
        if markup["broken"]:
            raise self._error(
                markup.start(),
                f"{markup['broken']} starts a malformed tag",
                hint="check for a missing quote or `>`; write a literal `<` as `&lt;`",
            )
        name, closes = (markup["name"] or "").lower(), bool(markup["close"])
        if name == "seg" and closes:
            self._close_segment(markup)
        elif name == "seg":
            self._refuse_open_segment(markup)
            self._segment_count += 1
            segment_id = _attributes(markup).get("id") or f"#{self._segment_count}"
            self._open = (segment_id, markup.start(), markup.end())
        elif name == "doc":
            self._refuse_open_segment(markup)
            if not closes:
                self._doc_count += 1
                self._segment_count = 0
                self._doc_id = _attributes(markup).get("docid") or f"#{self._doc_count}"
        elif name in {"srcset", "refset", "tstset"} and not closes:
            # A source set states its language as `srclang`; references and translations state theirs as `trglang`.
            attributes = _attributes(markup)
            language = attributes.get("srclang" if name == "srcset" else "trglang", "any")
            self.language = self.language or (None if language.lower() == "any" else language)
            self.set_id = self.set_id or attributes.get("setid")

    def finish(self) -> SgmFile:
        """Return the parsed file. Raise UnreadableError if a segment is not closed, or if there is no segment."""
        if self._open is not None:
            segment_id, start, _ = self._open
            raise self._error(start, f"<seg> {segment_id} is never closed", hint="is the file cut off?")
        if not self.segments:
            raise UnreadableError(
                f"{self.path}:{len(self._newlines) + 1}: reached the end of the file, but found no <seg>",
                hint="put each sentence in a <seg id=...> inside a <doc>; if the file is plain text, rename it to .txt",
            )
        return SgmFile(self.path, self.segments, self.language, self.set_id)

    def _close_segment(self, markup: re.Match[str]) -> None:
        if self._open is None:
            raise self._error(markup.start(), "</seg> closes a segment that was never opened")
        segment_id, start, text_start = self._open
        key = (self._doc_id, segment_id)
        if earlier := self.segments.get(key):
            raise self._error(
                start,
                f"doc {self._doc_id} has a second seg {segment_id}; the first is on line {earlier.line}",
                hint="keep one translation per sentence: tlaunch pairs sentences by doc ID and seg ID",
            )
        # Stray markup is removed first, so that a resolved `&lt;b&gt;` stays.
        text = normalised(_resolved(MARKUP.sub(" ", self.text[text_start : markup.start()])))
        self.segments[key] = Segment(*key, text, self._line(start))
        self._open = None

    def _refuse_open_segment(self, markup: re.Match[str]) -> None:
        if self._open is not None:
            segment_id, start, _ = self._open
            raise self._error(
                markup.start(),
                f"expected </seg> for seg {segment_id} (opened on line {self._line(start)}), found {markup[0]}",
            )

    def _line(self, position: int) -> int:
        return bisect_left(self._newlines, position) + 1

    def _error(self, position: int, message: str, hint: str | None = None) -> UnreadableError:
        return UnreadableError(f"{self.path}:{self._line(position)}: {message}", hint=hint)


def _attributes(markup: re.Match[str]) -> dict[str, str]:
    """Return the attributes of a tag. Names are in lower case, values are stripped, and entities are resolved."""
    return {
        name.lower(): _resolved(double or single or bare).strip()
        for name, double, single, bare in ATTRIBUTE.findall(markup["attributes"])
    }


def _resolved(text: str) -> str:
    """Resolve entities such as `&amp;` and `&#38;`. Unlike `html.unescape`, keep unknown names and bare `&`."""
    return ENTITY.sub(
        lambda entity: unescape(entity[0]) if entity[0][1] == "#" else html5.get(entity[0][1:], entity[0]), text
    )
