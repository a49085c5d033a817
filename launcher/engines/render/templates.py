"""Fill a template; filters write values of each format."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from launcher.core.errors import UsageError
from launcher.core.resources import data_dir
from launcher.core.text import counted, shell_word
from launcher.engines.render.job import Job
from launcher.logs.terminal import escaped
from launcher.preload.masking import masked_argv
from launcher.runs.record import masked_environment

# What YAML does not take as it stands, in text between quotes: json.dumps writes those below a blank.
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# What a literal block cannot hold: tabs and newlines it can.
_NOT_IN_A_BLOCK = re.compile(r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def sh(value: Any) -> str:
    """Return `value` as one word of bash, with escapes for control characters other than newlines and tabs."""
    text = _text(value)
    return shlex.quote(text) if text.replace("\n", "").replace("\t", "").isprintable() else shell_word(text)


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
    """Return `value` as an argument of an #SBATCH line, which ends with the line and knows double quotes."""
    text = _text(value)
    if not text.isprintable():
        raise UsageError(f"{text!r} cannot stand in an #SBATCH line", hint="leave control characters out")
    return text if _PLAIN.fullmatch(text) else '"{}"'.format(re.sub(r'(["\\])', r"\\\1", text))


def word(value: Any) -> str:
    """Return `value` as a word for formats without any quotes, where it has no blanks, no control characters, nothing that looks like an option."""
    text = _text(value)
    if not text or not text.isprintable() or " " in text or text.startswith(("-", "#")):
        raise UsageError(f"{text!r} cannot be written here", hint="this format has no quotes for it")
    return text


def masked(value: Any) -> Any:
    """Return the words of a command, or variables by name, with secrets masked."""
    return masked_environment(value) if isinstance(value, Mapping) else masked_argv(value)


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
    "json": json.dumps,  # one line of ASCII: bytes that are no UTF-8 arrive as what stands for them
    "masked": masked,
    "yaml": yaml,
    "yaml_block": yaml_block,
    "sbatch": sbatch,
    "word": word,
    "comment": lambda value: escaped(str(value)),  # a comment ends with its line
    "counted": counted,
}


def fill(template: str, job: Job) -> str:
    """Return the text of `template` for `job`.

    Raises:
        UsageError: a value cannot be expressed in the format.
    """
    environment = Environment(  # noqa: S701 - no HTML; each value is written by a filter of its format
        loader=FileSystemLoader(data_dir("templates") / "render"),
        undefined=StrictUndefined,
        comment_start_string="<#",  # {# is in every shell script that counts words
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(template).render(job.as_variables())
