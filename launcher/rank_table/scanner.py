"""One pass over a text that should be JSON: what is wrong with it, and which keys are repeated.

Only for texts that `json.loads` refused, or in which it met a repeated key; all others never come here. The scanner
keeps its own stack, so depth of nesting costs memory and no recursion, and looks at each character a fixed number of
times.

Broken text is not only refused: what can be mended by overwriting characters in place (a trailing comma, a comment, a
missing comma where there is a blank) is noted as an edit of the same length, so that the rest of the table can
still be checked with every offset unchanged.

    Scanner    what may come next, token by token
    Stack      the containers that are open, their keys, and which of those are repeated
    ErrorLog   the errors, the patches, and whether the patches are enough (in `syntax_errors`, as are longer messages)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from launcher.rank_table import syntax_errors, tokens
from launcher.rank_table.positions import Edit, RepeatedKey, overwritten
from launcher.rank_table.syntax_errors import ErrorLog, Fault, remedy
from launcher.rank_table.tokens import (
    CLOSING,
    SCALAR,
    STRING,
    Token,
    entry_pattern,
    has_repeated_key,
    member_pattern,
    next_token,
)

MAX_DEPTH = 100  # a rank table of any format needs fewer than 15 levels
MAX_FAULTS = 50_000  # a slip on every line of a large table; beyond it the text is something else
MAX_REPEATS = 1000  # repeated keys that are reported one by one


@dataclass
class _Frame:
    """A container that is still open."""

    bracket: str
    start: int
    name: str | int  # its key or index in the container around it
    key: str = ""  # of the member being read
    count: int = 0
    comma: int | None = None  # the comma after which nothing has come yet
    elided: bool = False  # an ellipsis is the last thing that came
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def member(self) -> str | int:
        """The name, in this container, of the value being read."""
        return self.key if self.bracket == "{" else self.count

    @property
    def starts_entry(self) -> bool:
        """True if an entry may come now: after a comma, or as the first one."""
        return self.comma is not None or self.count == 0

    def end_value(self) -> None:
        self.count += 1
        self.comma, self.elided = None, False


class _Stack:
    """The containers that are open, from the outermost one, and the keys that one of them had twice."""

    def __init__(self, *, only_repeats: bool) -> None:
        self.frames = [_Frame("", 0, "")]
        self.repeats: list[RepeatedKey] = []
        self.has_enough = False  # of a text that has no fault, the end is where enough repeats are known
        self._only_repeats = only_repeats

    @property
    def top(self) -> _Frame:
        return self.frames[-1]

    def push(self, token: Token) -> None:
        self.frames.append(_Frame(token.kind, token.start, self.top.member))

    @property
    def brackets(self) -> str:
        """The opening brackets that no closing one has matched."""
        return "".join(frame.bracket for frame in self.frames[1:])

    def count_key(self, key: str, at: int) -> None:
        frame = self.frames[-1]
        first = frame.seen.setdefault(key, at)
        if first != at and len(self.repeats) < MAX_REPEATS:
            pointer = (*(inner.name for inner in self.frames[2:]), key)
            self.repeats.append(RepeatedKey(pointer, first, at))
            self.has_enough = self._only_repeats and len(self.repeats) == MAX_REPEATS
        frame.key, frame.comma = key, None


class Scan(NamedTuple):
    """The result of a scan."""

    faults: list[Fault]  # without repairs that may not be meant, where the text could not be read to its end
    repeats: list[RepeatedKey]
    repaired: str | None  # the text with all patches laid over it; None where that is not the JSON that was meant


class Scanner:
    """The state of one scan of a text: `Scanner(text).run()`."""

    def __init__(self, text: str, *, max_depth: int | None = MAX_DEPTH, only_repeats: bool = False) -> None:
        self.text = text
        self._log = ErrorLog(text)
        self._stack = _Stack(only_repeats=only_repeats)
        self._max_depth = max_depth
        self._done = False
        self._last = Token(tokens.END, 0, 0)  # the token before the present one
        self._expect: Callable[[Token], None] = self._value  # what handles the next token

    def run(self) -> Scan:
        """Scan the text to its end, or to the first fault that cannot be read over."""
        at = 0
        while not (self._done or self._log.stopped or self._stack.has_enough):
            if self._expect == self._entry:
                at = self._skip_plain_entries(at)
            token = next_token(self.text, at)
            at = token.end
            if self._touches_last(token):
                self._log.stop(syntax_errors.unpaired_quote(self.text, self._last, token))
                break
            # After the table anything may stand.
            known = token if self._expect == self._end else self._plain_token(token)
            if known is not None:
                self._expect(known)
                self._last = token
            if len(self._log.faults) >= MAX_FAULTS and not (self._done or self._log.stopped):
                message = f"{MAX_FAULTS} faults of the text end here; the rest is not read"
                self._log.stop(Fault("RT114", token.start, 1, message, "check that this is a rank table"))
        repeats = self._stack.repeats
        repaired = overwritten(self.text, sorted(self._log.patches)) if self._log.mendable else None
        # Behind a bracket that is the only fault, the rest of the text was seen to match.
        is_unsure = self._log.stopped and [fault.code for fault in self._log.faults] != ["RT112"]
        # Of a table that ends at a bracket too early, commas may be missing where another bracket is wrong.
        is_unsure = is_unsure or any(
            fault.code == "RT109" and self.text[fault.offset] in "{}[]," for fault in self._log.faults
        )
        faults = []
        for fault in self._log.faults:
            # A key twice, and no comma between the two: the object may be two that lost what separates them.
            is_in_two = fault.code == "RT105" and any(twice.first < fault.offset < twice.again for twice in repeats)
            faults.append(fault._replace(repair=None) if is_unsure or is_in_two else fault)
        return Scan(faults, repeats, repaired)

    def _touches_last(self, token: Token) -> bool:
        """Return whether two values stand together, one of them quoted: a quote is missing, or one too many."""
        if token.start != self._last.end or self._expect == self._end or not self._last.end:
            return False
        kinds = {self._last.kind, token.kind}
        quoted = kinds & {STRING, tokens.BROKEN_STRING}
        return bool(quoted) and kinds != {STRING} and kinds <= {STRING, SCALAR, tokens.WORD, tokens.BROKEN_STRING}

    # --- what may come next: each handler takes a token and sets what handles the one after it ---

    def _value(self, token: Token) -> None:
        in_list = self._stack.top.bracket == "["
        if token.kind in (STRING, SCALAR):
            self._log.check_surrogates(token)
            self._end_value()
        elif token.kind in CLOSING and self._max_depth is not None and len(self._stack.frames) > self._max_depth:
            message = f"nested more than {self._max_depth} levels deep"
            self._log.stop(Fault("RT110", token.start, 1, message, "a rank table needs fewer than 15 levels"))
        elif token.kind in CLOSING:
            self._stack.push(token)
            self._expect = self._entry
        elif token.kind == "]" and in_list:
            self._close()
        elif token.kind == "," and in_list:
            self._needless_comma(token)
        elif token.kind == "}" and in_list:
            self._unmatched(token)
        else:
            self._refuse(token, f"a value is missing before {token.kind}")

    def _key(self, token: Token) -> None:
        if token.kind == STRING:
            self._log.check_surrogates(token)
            raw = self.text[token.start : token.end]
            key = raw.strip("'\"“”„‘’‚")  # noqa: RUF001 - a word that stands for a string is its own text
            if raw.startswith('"'):
                key = str(json.loads(raw)) if "\\" in raw else raw[1:-1]
            self._stack.count_key(key, token.start)
            self._expect = self._colon
        elif token.kind == "}":
            self._close()
        elif token.kind == ",":
            self._needless_comma(token)
        elif token.kind == "]":
            self._unmatched(token)
        else:
            self._refuse(token, f"a key is missing before {self.text[token.start : token.start + 1]}")

    def _colon(self, token: Token) -> None:
        if token.kind == ":":
            self._expect = self._value
        elif token.kind in (STRING, SCALAR, "{", "["):
            self._log.missing(":", self._last.end, "the key and its value")
            self._expect = self._value
            self._value(token)
        else:
            self._refuse(token, f"a key has no value before {token.kind}")

    def _comma(self, token: Token) -> None:
        frame = self._stack.top
        if token.kind == ",":
            frame.comma = token.start
            self._expect = self._entry
        elif token.kind == CLOSING[frame.bracket]:
            self._close()
        elif token.kind in ("}", "]"):
            self._unmatched(token)
        elif token.kind == ":":
            # Only a string in a list can be a key, of an object that stands behind the list.
            if frame.bracket == "[" and self._last.kind == STRING:
                message = f"a key stands in a list: [ of line {_line_of(frame, self.text)} is still open"
                repair = syntax_errors.closed_before_key(self.text, self._last.start, token.end, self._stack.brackets)
                hint = "write ] before it, where that list ends"
                self._log.stop(Fault("RT112", token.start, 1, message, hint, repair))
            else:
                before_entry = next_token(self.text, token.end).kind in (STRING, *CLOSING)
                hint = "write a comma in its place" if before_entry else "remove it"
                self._log.stop(Fault("RT102", token.start, 1, "there is no key before this colon", hint))
        elif token.kind == tokens.END:
            self._cut_off()
        else:
            self._log.missing(",", self._last.end, "two entries")
            self._expect = self._entry
            self._entry(token)

    def _entry(self, token: Token) -> None:
        """Take the start of the next entry of the container that is open."""
        (self._key if self._stack.top.bracket == "{" else self._value)(token)

    def _end(self, token: Token) -> None:
        self._done = True
        if token.kind != tokens.END:
            hint = "remove it; if it is a bracket, one was closed too early above"
            fault = Fault("RT109", token.start, 1, "there is text after the end of the table", hint)
            self._log.overwrite(fault, token.start, len(self.text))

    # --- containers and their members ---

    def _skip_plain_entries(self, at: int) -> int:
        """Skip the members or entries at `at` that have no fault: what the handlers would do, in one step for each."""
        frame, text = self._stack.top, self.text
        of_object = frame.bracket == "{"
        next_one = (member_pattern() if of_object else entry_pattern()).match
        while (found := next_one(text, at)) is not None:
            if of_object:
                self._stack.count_key(found["key"], found.start("key") - 1)
            elif found["object"] and has_repeated_key(found["object"]):
                break
            at = found.end()
            frame.end_value()
            if not found["comma"]:
                self._expect = self._comma
                self._last = Token(SCALAR, found.start(), at)
                break
            frame.comma = at - 1
            self._last = Token(",", at - 1, at)
            if self._stack.has_enough:
                break
        return at

    def _close(self) -> None:
        """Leave a container. A comma before its bracket is one too many."""
        at, message = self._stack.top.comma, f"trailing comma before {CLOSING[self._stack.top.bracket]}"
        if at is not None:
            hint = "remove this comma, or add the entry that is missing after it"
            self._log.overwrite(Fault("RT103", at, 1, message, hint, Edit(at, at + 1, "")), at, at + 1)
        self._stack.frames.pop()
        self._end_value()

    def _end_value(self) -> None:
        self._stack.top.end_value()
        self._expect = self._comma if self._stack.top.bracket else self._end

    # --- faults ---

    def _plain_token(self, token: Token) -> Token | None:
        """Return the token of JSON that stands for one that JSON has not; None where there is nothing to stand for."""
        log, text = self._log, self.text
        if token.kind == tokens.COMMENT:
            log.overwrite(syntax_errors.comment(text, token), token.start, token.end)
        elif token.kind == tokens.ELLIPSIS:
            message, width = "a part of the table is left out here", token.end - token.start
            fault = Fault("RT113", token.start, width, message, "write every entry in full")
            log.overwrite(fault, token.start, token.end)
            log.mendable = False
            # Commas around it are not worth a fault.
            self._stack.top.comma, self._stack.top.elided = None, True
            if self._expect == self._comma:
                self._expect = self._entry
        elif token.kind in (tokens.SINGLE_QUOTED, tokens.TYPOGRAPHIC):
            replacement = f'"{text[token.start + 1 : token.end - 1]}"'
            wrong = syntax_errors.single_quoted if token.kind == tokens.SINGLE_QUOTED else syntax_errors.typographic
            log.overwrite(wrong(text, token, replacement), token.start, token.end, replacement)
            return token._replace(kind=STRING)
        elif token.kind == tokens.WIDE_MARK:
            mark = tokens.WIDE_MARKS[text[token.start]]
            log.overwrite(syntax_errors.typographic(text, token, mark), token.start, token.end, mark)
            return token._replace(kind=mark)
        elif token.kind == tokens.WORD:
            return self._word(token)
        elif token.kind == tokens.OPEN_COMMENT:
            message = "JSON has no comments, and this one is not closed"
            log.stop(Fault("RT104", token.start, 2, message, "remove it"))
        elif token.kind == tokens.BROKEN_STRING:
            log.stop(syntax_errors.broken_string(text, token))
        else:
            return token
        return None

    def _word(self, token: Token) -> Token | None:
        char = self.text[token.start]
        if char in tokens.WIDE_BLANKS:
            self._log.overwrite(syntax_errors.typographic(self.text, token, " "), token.start, token.end)
            return None
        # Of a quote, the other half is missing.
        fault = syntax_errors.typographic(self.text, token, None) if char in tokens.MEANT else None
        if fault is None and self._expect in (self._value, self._key, self._entry):
            self._log.unquoted(token)
            return token._replace(kind=STRING)
        word = self.text[token.start : token.end]
        message = f"{syntax_errors.shown(word)} is not expected here"
        self._log.stop(fault or Fault("RT102", token.start, len(word), message, self._expected()))
        return None

    def _needless_comma(self, token: Token) -> None:
        frame, fault = self._stack.top, None
        if not frame.elided and frame.starts_entry:
            message, repair = "there is no entry before this comma", Edit(token.start, token.end, "")
            fault = Fault("RT103", token.start, 1, message, "remove the comma", repair)
        self._log.overwrite(fault, token.start, token.end)
        frame.elided = False

    def _unmatched(self, token: Token) -> None:
        """Stop at a closing bracket of the other kind than what is open: what was meant after it is not certain."""
        frame = self._stack.top
        way = remedy(self.text, token.start, self._stack.brackets)
        follows = next_token(self.text, token.end).kind
        needless = "after" if frame.starts_entry and follows == "," else ""
        if frame.comma is not None and follows == CLOSING[frame.bracket]:
            needless = "before"
        opened = frame.bracket, _line_of(frame, self.text)
        self._log.stop(
            syntax_errors.unmatched(self.text, token, opened, way, comma=frame.comma, needless_comma=needless)
        )

    def _refuse(self, token: Token, what: str) -> None:
        if token.kind == tokens.END:
            self._cut_off()
        else:
            self._log.stop(Fault("RT102", token.start, 1, what, self._expected()))

    def _cut_off(self) -> None:
        closings = "".join(CLOSING[bracket] for bracket in reversed(self._stack.brackets))
        if not closings:
            self._log.stop(Fault("RT111", 0, 1, "the file holds no table", "copy or generate it again"))
            return
        still = "a bracket is" if len(closings) == 1 else f"{len(closings)} brackets are"
        hint = f"the file is cut off, or lacks {closings[:20]} at its end"
        at = max(self._last.end - 1, 0)
        self._log.stop(Fault("RT108", at, 1, f"the file ends while {still} open", hint))

    def _expected(self) -> str:
        if self._expect == self._colon:
            return "expected a colon between key and value"
        if self._expect == self._comma:
            return "expected a comma, or the bracket that closes this list or object"
        if self._expect == self._end:
            return "expected the end of the file"
        is_key = self._expect in (self._key, self._entry) and self._stack.top.bracket == "{"
        return "expected a key in double quotes" if is_key else "expected a value in double quotes, a list or an object"


def _line_of(frame: _Frame, text: str) -> int:
    return text.count("\n", 0, frame.start) + 1
