"""Scan text that is not valid JSON in one pass, and report its faults and repeated keys.

The scanner runs only for texts that `json.loads` refused, or in which it found a repeated key. It keeps its own stack
instead of recursion, and reads each character a fixed number of times.

Some faults can be repaired by overwriting characters in place: a trailing comma, a comment, a missing comma before a
blank. The scanner records an edit of the same length, so that the rest of the table can be checked with unchanged
offsets.

    Scanner    the tokens that may come next
    Stack      the open containers, their keys, and the repeated ones
    ErrorLog   the faults and patches, and whether the patches repair the text (in `syntax_errors`)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.rank_table import syntax_errors, tokens
from launcher.rank_table.positions import Edit, RepeatedKey, overwritten
from launcher.rank_table.syntax_errors import ErrorLog, Fault, remedy
from launcher.rank_table.tokens import CLOSING, SCALAR, STRING, Token, next_token

MAX_DEPTH = 100  # a rank table of any format needs fewer than 15 levels
MAX_FAULTS = 50_000  # allows a fault on every line of a large table
MAX_REPEATS = 1000  # repeated keys that are listed


@dataclass
class _Frame:
    bracket: str
    start: int
    name: str | int  # its key or index in the enclosing container
    key: str = ""  # key of the current member
    count: int = 0
    comma: int | None = None  # the comma that was the last token
    elided: bool = False  # an ellipsis was the last token
    seen: dict[str, int] = field(default_factory=dict)

    @property
    def member(self) -> str | int:
        """The key or index of the current value."""
        return self.key if self.bracket == "{" else self.count

    @property
    def starts_entry(self) -> bool:
        """True if an entry may start here: after a comma, or at the beginning of a container."""
        return self.comma is not None or self.count == 0

    def end_value(self) -> None:
        self.count += 1
        self.comma, self.elided = None, False


class _Stack:
    """A stack of the open containers, outermost first, and the repeated keys found so far."""

    def __init__(self, *, only_repeats: bool) -> None:
        self.frames = [_Frame("", 0, "")]
        self.repeats: list[RepeatedKey] = []
        self.has_enough = False  # for a text without faults: enough repeated keys are known
        self._only_repeats = only_repeats

    @property
    def top(self) -> _Frame:
        return self.frames[-1]

    def push(self, token: Token) -> None:
        self.frames.append(_Frame(token.kind, token.start, self.top.member))

    @property
    def brackets(self) -> str:
        return "".join(frame.bracket for frame in self.frames[1:])

    def count_key(self, key: str, at: int) -> None:
        frame = self.frames[-1]
        first = frame.seen.setdefault(key, at)
        if first != at and len(self.repeats) < MAX_REPEATS:
            self.repeats.append(RepeatedKey((*(inner.name for inner in self.frames[2:]), key), first, at))
            self.has_enough = self._only_repeats and len(self.repeats) == MAX_REPEATS
        frame.key, frame.comma = key, None


class Scanner:
    """A scanner for a single text. Call `Scanner(text).run()`."""

    def __init__(self, text: str, *, max_depth: int | None = MAX_DEPTH, only_repeats: bool = False) -> None:
        self.text = text
        self._log = ErrorLog(text)
        self._stack = _Stack(only_repeats=only_repeats)
        self._max_depth = max_depth
        self._done = False
        self._last = Token(tokens.END, 0, 0)  # the previous token
        self._expect: Callable[[Token], None] = self._value  # the handler of the next token

    def run(self) -> tuple[list[Fault], list[RepeatedKey], str | None]:
        """Scan the text to its end, or to the first fault after which scanning cannot continue.

        Return the faults (doubtful repairs removed), the repeated keys, and the text with all patches applied. The text
        is None if the patches do not lead to the intended JSON.
        """
        at = 0
        while not (self._done or self._log.stopped or self._stack.has_enough):
            if self._expect == self._entry:
                at = self._skip_plain_entries(at)
            token = next_token(self.text, at)
            at = token.end
            if self._touches_last(token):
                self._log.stop(syntax_errors.unpaired_quote(self.text, self._last, token))
                break
            # Any text may follow the table.
            known = token if self._expect == self._end else self._plain_token(token)
            if known is not None:
                self._expect(known)
                self._last = token
            if len(self._log.faults) >= MAX_FAULTS and not (self._done or self._log.stopped):
                message = f"the text has {MAX_FAULTS} faults up to this position; the rest is not read"
                self._log.stop(Fault("RT114", token.start, 1, message, "check that this is a rank table"))
        repeats = self._stack.repeats
        repaired = overwritten(self.text, sorted(self._log.patches)) if self._log.mendable else None
        # If a bracket is the only fault, the rest of the text is known to match.
        is_unsure = self._log.stopped and [fault.code for fault in self._log.faults] != ["RT112"]
        # If a bracket ends the table too early, a missing comma may be the result of another wrong bracket.
        ends = (self.text[fault.offset] for fault in self._log.faults if fault.code == "RT109")
        is_unsure = is_unsure or any(char in "{}[]," for char in ends)
        faults = []
        for fault in self._log.faults:
            # A repeated key with no comma in between may mean that two objects lost their separator.
            is_in_two = fault.code == "RT105" and any(twice.first < fault.offset < twice.again for twice in repeats)
            faults.append(fault._replace(repair=None) if is_unsure or is_in_two else fault)
        return faults, repeats, repaired

    def _touches_last(self, token: Token) -> bool:
        """Return True if a missing or extra quote leaves no gap between the previous value and a quoted value."""
        if token.start != self._last.end or self._expect == self._end or not self._last.end:
            return False
        kinds = {self._last.kind, token.kind}
        quoted = kinds & {STRING, tokens.BROKEN_STRING}
        return bool(quoted) and kinds != {STRING} and kinds <= {STRING, SCALAR, tokens.WORD, tokens.BROKEN_STRING}

    # --- handlers: each takes a token and sets the handler of the next one ---

    def _value(self, token: Token) -> None:
        in_list = self._stack.top.bracket == "["
        if token.kind in (STRING, SCALAR):
            self._log.check_surrogates(token)
            self._end_value()
        elif token.kind in CLOSING and self._max_depth is not None and len(self._stack.frames) > self._max_depth:
            message = f"nested more than {self._max_depth} levels deep"
            hint = "check that this is a rank table: it needs fewer than 15 levels"
            self._log.stop(Fault("RT110", token.start, 1, message, hint))
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
            key = raw.strip("'\"“”„‘’‚")  # noqa: RUF001 - a bare word has no quotes to strip
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
            # A string in a list may be a key of an object that should follow the list.
            if frame.bracket == "[" and self._last.kind == STRING:
                message = f"a key is inside a list: [ of line {_line_of(frame, self.text)} is still open"
                repair = syntax_errors.closed_before_key(self.text, self._last.start, token.end, self._stack.brackets)
                hint = "write ] at the end of the list"
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
        """Handle the first token of an entry in the current object or list."""
        (self._key if self._stack.top.bracket == "{" else self._value)(token)

    def _end(self, token: Token) -> None:
        self._done = True
        if token.kind != tokens.END:
            hint = "remove it; if it is a bracket, check for one that is closed too early above"
            fault = Fault("RT109", token.start, 1, "there is text after the end of the table", hint)
            self._log.overwrite(fault, token.start, len(self.text))

    # --- containers and their members ---

    def _skip_plain_entries(self, at: int) -> int:
        """Skip entries without faults, starting at `at`. The token handlers give the same result, but are slower."""
        frame, text = self._stack.top, self.text
        of_object = frame.bracket == "{"
        next_one = (tokens.member_pattern() if of_object else tokens.entry_pattern()).match
        while (found := next_one(text, at)) is not None:
            if of_object:
                self._stack.count_key(found["key"], found.start("key") - 1)
            elif found["object"] and tokens.has_repeated_key(found["object"]):
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
        """Leave the current container, and report a trailing comma in it."""
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
        """Return the JSON token that replaces an invalid token, or None if there is no replacement."""
        log, text = self._log, self.text
        if token.kind == tokens.COMMENT:
            log.overwrite(syntax_errors.comment(text, token), token.start, token.end)
        elif token.kind == tokens.ELLIPSIS:
            message, width = "an ellipsis omits a part of the table", token.end - token.start
            fault = Fault("RT113", token.start, width, message, "write every entry in full")
            log.overwrite(fault, token.start, token.end)
            log.mendable = False
            # Commas around it are not reported.
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
            message = "JSON does not allow comments, and this one is not closed"
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
        # A typographic quote without its pair.
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
        """Stop scanning at a closing bracket that does not match, because the meaning of the rest is uncertain."""
        frame = self._stack.top
        way = remedy(self.text, token.start, self._stack.brackets)
        follows = next_token(self.text, token.end).kind
        needless = "after" if frame.starts_entry and follows == "," else ""
        if frame.comma is not None and follows == CLOSING[frame.bracket]:
            needless = "before"
        opened = frame.bracket, _line_of(frame, self.text)
        fault = syntax_errors.unmatched(self.text, token, opened, way, comma=frame.comma, needless_comma=needless)
        self._log.stop(fault)

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
        hint = f"copy the file again, or add {closings[:20]} at its end"
        self._log.stop(Fault("RT108", max(self._last.end - 1, 0), 1, f"the file ends while {still} open", hint))

    def _expected(self) -> str:
        if self._expect == self._colon:
            return "write a colon between key and value"
        if self._expect == self._comma:
            return "write a comma, or the bracket that closes this list or object"
        if self._expect == self._end:
            return "remove everything after the table"
        is_key = self._expect in (self._key, self._entry) and self._stack.top.bracket == "{"
        return "write a key in double quotes" if is_key else "write a value in double quotes, a list or an object"


def _line_of(frame: _Frame, text: str) -> int:
    return text.count("\n", 0, frame.start) + 1
