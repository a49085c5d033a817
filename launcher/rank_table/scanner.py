"""One pass over a text that should be JSON: what is wrong with it, and which keys are repeated.

Only for texts that `json.loads` refused, or in which it met a repeated key; all others never come here. The scanner
keeps its own stack, so depth of nesting costs memory and no recursion, and looks at each character a fixed number of
times.

Broken text is not only refused: what can be mended by overwriting characters in place (a trailing comma, a comment, a
missing comma where there is a blank) is noted as a `Patch` of the same length, so that the rest of the table can
still be checked with every offset unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from launcher.rank_table import faults, lexer
from launcher.rank_table.brackets import CLOSING, remedy
from launcher.rank_table.faults import Fault, Patch
from launcher.rank_table.lexer import SCALAR, STRING, Token, next_token
from launcher.rank_table.places import RepeatedKey
from launcher.rank_table.plain import ENTRY, MEMBER, has_repeated_key

MAX_DEPTH = 100  # a rank table of any format needs fewer than 15 levels
MAX_FAULTS = 50_000  # a slip on every line of a large table; beyond it the text is something else
MAX_REPEATS = 1000  # repeated keys that are told one by one


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


class Scanner:
    """Scan once with `run`, then read `repeats`, `faults` and `patches`."""

    def __init__(self, text: str, *, max_depth: int | None = MAX_DEPTH, only_repeats: bool = False) -> None:
        self.text = text
        self.repeats: list[RepeatedKey] = []
        self.faults: list[Fault] = []
        self.patches: list[Patch] = []
        self.mendable = True  # the patches turn the text into JSON that says what was meant
        self._max_depth = max_depth
        self._only_repeats = only_repeats  # of a text that has no fault: the end is where enough of them are known
        self._done = False
        self._stopped = False  # before the end: what was read so far may mean something else
        self._last = Token(lexer.END, 0, 0)  # the token before the present one
        self._doubtful_end = -1  # of the last word that cannot be repaired
        self._frames = [_Frame("", 0, "")]
        self._expect: Callable[[Token], None] = self._value  # what handles the next token

    def run(self) -> Scanner:
        """Scan the text to its end, or to the first fault that cannot be read over."""
        at = 0
        while not self._done:
            if self._expect == self._entry:
                at = self._over_plain_ones(at)
            token = next_token(self.text, at)
            at = token.end
            plain = (
                None if self._expect == self._end else self._odd.get(token.kind)
            )  # after the table anything may stand
            if self._touches_the_last(token):
                self._stop(faults.unpaired_quote(self.text, self._last, token))
                break
            known = plain(self, token) if plain else token
            if known is not None:
                self._expect(known)
                self._last = token
            if len(self.faults) >= MAX_FAULTS and not self._done:
                self._stop(faults.too_many(token.start, MAX_FAULTS))
        self.faults = [fault._replace(repair=None) if self._is_doubtful(fault) else fault for fault in self.faults]
        return self

    def _is_doubtful(self, fault: Fault) -> bool:
        """Where an object has a key twice, and between them lacks a comma, it may be two, of which the first lost its end."""
        in_two = fault.code == "RT105" and any(repeat.first < fault.offset < repeat.again for repeat in self.repeats)
        return self._stopped or in_two

    def _touches_the_last(self, token: Token) -> bool:
        """Whether two values stand together, one of them quoted: a quote is missing, or closes another string."""
        if token.start != self._last.end or self._expect == self._end or not self._last.end:
            return False
        kinds = {self._last.kind, token.kind}
        quoted = kinds & {STRING, lexer.BROKEN_STRING}
        return bool(quoted) and kinds != {STRING} and kinds <= {STRING, SCALAR, lexer.WORD, lexer.BROKEN_STRING}

    # --- what may come next: each handler takes a token and says what handles the one after it ---

    def _value(self, token: Token) -> None:
        frame = self._frames[-1]
        if token.kind in (STRING, SCALAR):
            self._check_surrogates(token)
            self._after_value()
        elif token.kind in CLOSING:
            self._open(token)
        elif token.kind == "]" and frame.bracket == "[":
            self._close_after_comma(frame)
        elif token.kind == "," and frame.bracket == "[":
            self._needless_comma(token)
        elif token.kind == "}" and frame.bracket == "[":
            self._unmatched(token, frame)
        else:
            self._refuse(token, f"a value is missing before {token.kind}")

    def _key(self, token: Token) -> None:
        frame = self._frames[-1]
        if token.kind == STRING:
            self._note_key(frame, token)
            self._expect = self._colon
        elif token.kind == "}":
            self._close_after_comma(frame)
        elif token.kind == ",":
            self._needless_comma(token)
        elif token.kind == "]":
            self._unmatched(token, frame)
        else:
            self._refuse(token, f"a key is missing before {self.text[token.start : token.start + 1]}")

    def _colon(self, token: Token) -> None:
        if token.kind == ":":
            self._expect = self._value
        elif token.kind in (STRING, SCALAR, "{", "["):
            self._missing(":", "the key and its value")
            self._expect = self._value
            self._value(token)
        else:
            self._refuse(token, f"a key has no value before {token.kind}")

    def _comma(self, token: Token) -> None:
        frame = self._frames[-1]
        if token.kind == ",":
            frame.comma = token.start
            self._expect = self._entry
        elif token.kind == CLOSING[frame.bracket]:
            self._close()
        elif token.kind in ("}", "]"):
            self._unmatched(token, frame)
        elif token.kind == ":":
            self._stop(self._colon_after_value(token, frame))
        elif token.kind == lexer.END:
            self._cut_off()
        else:
            self._missing(",", "two entries")
            self._expect = self._entry
            self._entry(token)

    def _colon_after_value(self, token: Token, frame: _Frame) -> Fault:
        """Only a string in a list can be a key, of an object that stands behind the list."""
        if frame.bracket == "[" and self._last.kind == STRING:
            return faults.key_in_list(token.start, self._line_of(frame))
        return faults.needless_colon(
            token.start, before_entry=next_token(self.text, token.end).kind in (STRING, *CLOSING)
        )

    def _entry(self, token: Token) -> None:
        """The start of the next entry of the container that is open."""
        (self._key if self._frames[-1].bracket == "{" else self._value)(token)

    def _end(self, token: Token) -> None:
        if token.kind == lexer.END:
            self._done = True
            return
        self.faults.append(faults.text_after(token.start))
        self.patches.append(Patch(token.start, len(self.text), " " * (len(self.text) - token.start)))
        self._done = True

    # --- containers and their members ---

    def _over_plain_ones(self, at: int) -> int:
        """Past the members or entries at `at` that have no fault: what the handlers would do, in one step for each."""
        frame, text = self._frames[-1], self.text
        of_object = frame.bracket == "{"
        next_one = (MEMBER if of_object else ENTRY).match
        while (found := next_one(text, at)) is not None:
            if of_object:
                self._count_key(frame, found["key"], found.start("key") - 1)
            elif found["object"] and has_repeated_key(found["object"]):
                break
            at = found.end()
            frame.count += 1
            frame.elided = False
            if found["comma"]:
                frame.comma = at - 1
                self._last = Token(",", at - 1, at)
            else:
                frame.comma, self._expect = None, self._comma
                self._last = Token(SCALAR, found.start(), at)
            if self._done or not found["comma"]:
                break
        return at

    def _open(self, token: Token) -> None:
        if self._max_depth is not None and len(self._frames) > self._max_depth:
            self._stop(faults.too_deep(token.start, self._max_depth))
            return
        self._frames.append(_Frame(token.kind, token.start, self._frames[-1].member))
        self._expect = self._entry

    def _close(self) -> None:
        self._frames.pop()
        self._after_value()

    def _close_after_comma(self, frame: _Frame) -> None:
        """A closing bracket where an entry could stand: fine when there is none yet, else a comma too many."""
        if frame.comma is not None:
            self.faults.append(faults.trailing_comma(frame.comma, CLOSING[frame.bracket]))
            self.patches.append(Patch(frame.comma, frame.comma + 1, " "))
        self._close()

    def _after_value(self) -> None:
        frame = self._frames[-1]
        frame.count += 1
        frame.comma, frame.elided = None, False
        self._expect = self._comma if frame.bracket else self._end

    def _note_key(self, frame: _Frame, token: Token) -> None:
        self._check_surrogates(token)
        self._count_key(frame, _key_text(self.text[token.start : token.end]), token.start)

    def _count_key(self, frame: _Frame, key: str, at: int) -> None:
        first = frame.seen.setdefault(key, at)
        if first != at and len(self.repeats) < MAX_REPEATS:
            pointer = (*(inner.name for inner in self._frames[2:]), key)
            self.repeats.append(RepeatedKey(pointer, first, at))
            self._done = self._only_repeats and len(self.repeats) == MAX_REPEATS
        frame.key, frame.comma = key, None

    # --- faults that are said and read over ---

    def _comment(self, token: Token) -> None:
        self.faults.append(faults.comment(self.text, token))
        self._blank_out(token)

    def _ellipsis(self, token: Token) -> None:
        self.faults.append(faults.ellipsis(token))
        self._blank_out(token)
        self.mendable = False
        self._frames[-1].comma, self._frames[-1].elided = None, True  # commas around it are not worth a fault
        if self._expect == self._comma:
            self._expect = self._entry

    def _single_quoted(self, token: Token) -> Token:
        return self._requoted(token, faults.single_quoted(self.text, token))

    def _typographic(self, token: Token) -> Token:
        return self._requoted(token, faults.typographic_string(self.text, token))

    def _requoted(self, token: Token, fault: Fault) -> Token:
        self.faults.append(fault)
        self.patches.append(Patch(token.start, token.end, f'"{self.text[token.start + 1 : token.end - 1]}"'))
        return token._replace(kind=STRING)

    def _wide_mark(self, token: Token) -> Token:
        mark = faults.WIDE_MARKS[self.text[token.start]]
        self.faults.append(faults.wide_mark(self.text, token))
        self.patches.append(Patch(token.start, token.end, mark))
        return token._replace(kind=mark)

    def _word(self, token: Token) -> Token | None:
        fault = faults.typographic(self.text, token)
        if fault and self.text[token.start] in faults.WIDE_BLANKS:
            self.faults.append(fault)
            self._blank_out(token)
            return None
        if fault is None and self._expect in (self._value, self._key, self._entry):
            self.faults.append(faults.unquoted(self.text, token))
            self.mendable = False
            self._doubtful_end = token.end if self.faults[-1].repair is None else -1
            return token._replace(kind=STRING)
        self._stop(fault or faults.unexpected_word(self.text, token, self._expected()))
        return None

    def _open_comment(self, token: Token) -> None:
        self._stop(faults.open_comment(token))

    def _broken_string(self, token: Token) -> None:
        self._stop(faults.broken_string(self.text, token))

    _odd: dict[str, Callable[[Scanner, Token], Token | None]] = {  # noqa: RUF012  # never changed
        lexer.COMMENT: _comment,
        lexer.ELLIPSIS: _ellipsis,
        lexer.SINGLE_QUOTED: _single_quoted,
        lexer.TYPOGRAPHIC: _typographic,
        lexer.WIDE_MARK: _wide_mark,
        lexer.WORD: _word,
        lexer.OPEN_COMMENT: _open_comment,
        lexer.BROKEN_STRING: _broken_string,
    }

    def _blank_out(self, token: Token) -> None:
        self.patches.append(Patch(token.start, token.end, " " * (token.end - token.start)))

    def _needless_comma(self, token: Token) -> None:
        frame = self._frames[-1]
        if not frame.elided and (frame.comma is not None or frame.count == 0):
            self.faults.append(faults.needless_comma(token.start))
        frame.elided = False
        self._blank_out(token)

    def _missing(self, mark: str, between: str) -> None:
        at = self._last.end
        fault = faults.missing(self.text, mark, at, between)
        # After a word that nobody understands, what is missing is not certain either.
        self.faults.append(fault._replace(repair=None) if at == self._doubtful_end else fault)
        if self.text[at] in " \t\r\n":
            self.patches.append(Patch(at, at + 1, mark))
        else:
            self.mendable = False

    def _check_surrogates(self, token: Token) -> None:
        """Half a surrogate pair is no character: Python lets it pass, HCCL's parser does not."""
        raw = self.text[token.start : token.end]
        if "\\u" in raw and any("\ud800" <= char <= "\udfff" for char in _key_text(raw)):
            self.faults.append(faults.half_a_pair(token))
            self.mendable = False

    # --- faults after which guessing would say more than the text does ---

    def _stop(self, fault: Fault) -> None:
        self.faults.append(fault)
        self._done, self._stopped, self.mendable = True, True, False

    def _unmatched(self, token: Token, frame: _Frame) -> None:
        """A closing bracket of the other kind than what is open. Nobody can be sure what was meant after it."""
        way = remedy(self.text, token.start, "".join(inner.bracket for inner in self._frames[1:]))
        starts_entry = frame.comma is not None or frame.count == 0
        after_comma, follows = frame.comma is not None, next_token(self.text, token.end).kind
        needless = "after" if starts_entry and follows == "," else ""
        if after_comma and follows == CLOSING[frame.bracket]:
            needless = "before"
        opened = frame.bracket, self._line_of(frame)
        self._stop(faults.unmatched(token, opened, way, after_comma=after_comma, needless_comma=needless))

    def _line_of(self, frame: _Frame) -> int:
        return self.text.count("\n", 0, frame.start) + 1

    def _refuse(self, token: Token, what: str) -> None:
        if token.kind == lexer.END:
            self._cut_off()
        else:
            self._stop(faults.misplaced(what, token.start, self._expected()))

    def _cut_off(self) -> None:
        closings = "".join(CLOSING[frame.bracket] for frame in reversed(self._frames[1:]))
        self._stop(faults.cut_off(max(self._last.end - 1, 0), closings) if closings else faults.nothing())

    def _expected(self) -> str:
        if self._expect == self._colon:
            return "expected a colon between key and value"
        if self._expect == self._comma:
            return "expected a comma, or the bracket that closes this list or object"
        if self._expect == self._end:
            return "expected the end of the file"
        is_key = self._expect in (self._key, self._entry) and self._frames[-1].bracket == "{"
        return "expected a key in double quotes" if is_key else "expected a value in double quotes, a list or an object"


def _key_text(raw: str) -> str:
    """What a string token says; a word that stands for a string says itself."""
    if raw.startswith('"'):
        return str(json.loads(raw)) if "\\" in raw else raw[1:-1]
    return raw.strip("'\"“”„‘’‚")  # noqa: RUF001
