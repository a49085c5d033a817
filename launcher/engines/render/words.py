"""Filters: how a value is written so that it arrives as it is, or is refused."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from launcher.core.env import masked_argv
from launcher.core.errors import UsageError
from launcher.logs.terminal import escaped
from launcher.runs.record import masked_environment

# What YAML does not take as it stands, in text between quotes: json.dumps writes those below a blank.
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# What a literal block cannot hold: tabs and newlines it can.
_NOT_IN_A_BLOCK = re.compile(r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def sh(value: Any) -> str:
    """One word of bash. A carriage return is written as an escape: sbatch refuses scripts with the line ends of DOS."""
    return shlex.quote(_text(value)).replace("\r", "'$'\\r''")


def yaml(value: Any) -> str:
    """Return `value` as a scalar of YAML: JSON is one, once what only JSON allows is escaped."""
    if not isinstance(value, str):
        return json.dumps(value)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(_text(value), ensure_ascii=False))


def yaml_block(value: Any, indent: int) -> str:
    """Return a text of several lines, as a readable literal block if it can be one."""
    text = _text(value)
    if not text.endswith("\n") or text.endswith("\n\n") or text[:1] in " \t\n" or _NOT_IN_A_BLOCK.search(text):
        return yaml(text)
    lines = (" " * indent + line if line else "" for line in text[:-1].split("\n"))
    return "|\n" + "\n".join(lines)


def sbatch(value: Any) -> str:
    """One argument of an #SBATCH line, which ends with the line and knows double quotes."""
    text = _text(value)
    if not text.isprintable():
        raise UsageError(f"{text!r} cannot stand in an #SBATCH line", hint="leave control characters out")
    return text if _PLAIN.fullmatch(text) else '"{}"'.format(re.sub(r'(["\\])', r"\\\1", text))


def word(value: Any) -> str:
    """For formats without any quotes: no blanks, no control characters, nothing that looks like an option."""
    text = _text(value)
    if not text or not text.isprintable() or " " in text or text.startswith(("-", "#")):
        raise UsageError(f"{text!r} cannot be written here", hint="this format has no quotes for it")
    return text


def in_json(value: Any) -> str:
    """JSON in one line, of ASCII only: bytes that are no UTF-8 arrive as what stands for them."""
    return json.dumps(value)


def masked(value: Any) -> Any:
    """Return the words of a command, or variables by name, with secrets masked."""
    return masked_environment(value) if isinstance(value, Mapping) else masked_argv(value)


def comment(value: Any) -> str:
    """Return `value` for a comment, which ends with its line."""
    return escaped(str(value))


def counted(count: int, noun: str) -> str:
    """1 rank, 2 ranks."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _text(value: Any) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        [shown] = masked_argv((text,))
        raise UsageError(f"{shown!r} is no UTF-8 text, as job files are", hint="write it in UTF-8") from None
    return text


FILTERS = {
    "sh": sh,
    "json": in_json,
    "masked": masked,
    "yaml": yaml,
    "yaml_block": yaml_block,
    "sbatch": sbatch,
    "word": word,
    "comment": comment,
    "counted": counted,
}
