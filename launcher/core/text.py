"""Text helpers: escaping, number ranges, durations, and suggestions for misspelled words."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

LONG = 6  # words of at least this length may contain two mistakes
MIN_BEGINNING = 3  # minimum length of an incomplete word
SHOWN = 3
UNITS_S = {"ms": 0.001, "min": 60, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_AMOUNT = re.compile(rf"(\d{{1,9}}(?:\.\d{{1,9}})?)({'|'.join(UNITS_S)})")
_DURATION = re.compile(f"(?:{_AMOUNT.pattern})+")
# Characters that a terminal obeys, except tabs. The last two ranges change the text direction, which could disguise a name.
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SHOWN_AS = {  # for `str.translate`; ESC is shown as ^[
    code: f"^{chr(code ^ 0x40)}" if code < 0x80 else f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
    for code in map(ord, filter(CONTROL.match, map(chr, (*range(0x100), *range(0x2000, 0x2100)))))
}


def printable(text: str) -> str:
    r"""Escape characters that end a line, move a terminal's cursor or change the text direction.

    >>> printable("no\nerror: all is well.json")
    'no\\u000aerror: all is well.json'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)


def shell_words(words: Iterable[str]) -> str:
    r"""Quote words for a shell, as one line that is safe to print.

    >>> shell_words(["a b", "c\nd"])
    "'a b' $'c\\x0ad'"
    """
    return " ".join(map(shell_word, words))


def shell_word(word: str) -> str:
    r"""Quote a word for a shell. Control characters and invalid UTF-8 are escaped in bash's $'...' syntax.

    >>> shell_word("it's"), shell_word("caf\udce9"), shell_word("\x1b[2J")
    ('\'it\'"\'"\'s\'', "$'caf\\xe9'", "$'\\x1b[2J'")
    """
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_escaped, word))}'"


def _escaped(char: str) -> str:
    if char.isprintable() and char not in "\\'":
        return char
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"  # records may hold other surrogates
    return "".join(f"\\x{byte:02x}" for byte in char.encode(errors=errors))


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers in ascending order, with consecutive numbers as ranges.

    >>> ranges([10, 0, 2, 1, 3, 8, 11]), ranges([])
    ('0-3,8,10-11', '')
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration_s(text: str) -> float | None:
    """Convert a duration with units to seconds. Return None if `text` is not a duration.

    >>> duration_s("1h30m"), duration_s("500ms"), duration_s("90")
    (5400.0, 0.5, None)
    """
    if _DURATION.fullmatch(text) is None:
        return None
    return sum((float(number) * UNITS_S[unit] for number, unit in _AMOUNT.findall(text)), 0.0)


def some_of(words: Sequence[str], shown: int) -> str:
    """Join the first words and count the rest: "h1, h2 and 12 more"."""
    return ", ".join(words[:shown]) + (f" and {len(words) - shown} more" if len(words) > shown else "")


def listed(words: Sequence[str], shown: int = 4) -> str:
    """Join words for a sentence: "h1, h2 and h3". If there are more than `shown` words, count the rest."""
    if not 1 < len(words) <= shown:
        return some_of(words, shown)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def near(word: str, known: Iterable[str], *, limit: int = SHOWN) -> tuple[str, ...]:
    """Return the words in `known` that are similar to `word`, or that start with it, best first.

    Similar words differ by one edit, or by up to two if `word` is long. An edit is an extra, missing, wrong or transposed
    character. Case and leading dashes are ignored.
    """
    wanted = _bare(word)
    most = 0 if len(wanted) < MIN_BEGINNING else 1 if len(wanted) < LONG else 2
    found = []
    for one in dict.fromkeys(known):
        name = _bare(one)
        count = slips(wanted, name) if abs(len(name) - len(wanted)) <= most else most + 1
        if count <= most:
            found.append((count, one))
        elif len(wanted) >= MIN_BEGINNING and name.startswith(wanted):
            found.append((most, one))
    return tuple(one for _, one in sorted(found))[:limit]


def did_you_mean(words: Iterable[str]) -> str | None:
    offered = list(words)
    return f"did you mean {' or '.join(offered)}?" if offered else None


def slips(one: str, other: str) -> int:
    """Return the number of edits between two words (optimal string alignment distance)."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1]


def _bare(word: str) -> str:
    return word.lstrip("-").casefold()
