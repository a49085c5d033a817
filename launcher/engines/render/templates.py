"""Fill a template. Its filters write values in the syntax of each format."""

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

# Characters that YAML does not allow unescaped in quoted text; json.dumps escapes those below the space.
_NOT_IN_YAML = re.compile(r"[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# Characters that a literal block cannot contain, other than tabs and newlines.
_NOT_IN_A_BLOCK = re.compile(r"[^\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")


def sh(value: Any) -> str:
    """Quote `value` as one bash word. Control characters other than newlines and tabs are escaped."""
    text = _text(value)
    return shlex.quote(text) if text.replace("\n", "").replace("\t", "").isprintable() else shell_word(text)


def yaml(value: Any) -> str:
    """Return `value` as a YAML scalar. It is JSON text, with escapes for characters that YAML forbids."""
    if not isinstance(value, str):
        return json.dumps(value)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(_text(value), ensure_ascii=False))


def yaml_block(value: Any, indent: int) -> str:
    """Return text of several lines as a YAML literal block, or as a quoted scalar if that is not possible."""
    text = _text(value)
    if not text.endswith("\n") or text.endswith("\n\n") or text[:1] in " \t\n" or _NOT_IN_A_BLOCK.search(text):
        return yaml(text)
    lines = (" " * indent + line if line else "" for line in text[:-1].split("\n"))
    return "|\n" + "\n".join(lines)


def sbatch(value: Any) -> str:
    """Quote `value` for an #SBATCH line. Raises UsageError if it contains a control character."""
    text = _text(value)
    if not text.isprintable():
        raise UsageError(f"#SBATCH lines cannot contain control characters: {text!r}", hint="remove control characters")
    return text if _PLAIN.fullmatch(text) else '"{}"'.format(re.sub(r'(["\\])', r"\\\1", text))


def word(value: Any) -> str:
    """Return `value` as text for a format that has no quotes. Raises UsageError for spaces and unsafe characters."""
    text = _text(value)
    if not text or not text.isprintable() or " " in text or text.startswith(("-", "#")):
        raise UsageError(
            f"the format of the job file does not support the value {text!r}",
            hint="remove spaces, control characters, and a leading `-` or `#`: the format does not support quotes",
        )
    return text


def masked(value: Any) -> Any:
    return masked_environment(value) if isinstance(value, Mapping) else masked_argv(value)


def _text(value: Any) -> str:
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError:
        [shown] = masked_argv((text,))
        raise UsageError(f"{shown!r} is not UTF-8, but job files must be UTF-8", hint="write it in UTF-8") from None
    return text


FILTERS = {
    "sh": sh,
    "json": json.dumps,  # one line of ASCII: bytes that are not UTF-8 arrive as their replacement
    "masked": masked,
    "yaml": yaml,
    "yaml_block": yaml_block,
    "sbatch": sbatch,
    "word": word,
    "comment": lambda value: escaped(str(value)),  # a comment ends with its line
    "counted": counted,
}


def fill(template: str, job: Job) -> str:
    """Render `template` for `job`. Raises UsageError if the format cannot express a value."""
    environment = Environment(  # noqa: S701 - not HTML; a filter of each format writes every value
        loader=FileSystemLoader(data_dir("templates") / "render"),
        undefined=StrictUndefined,
        comment_start_string="<#",  # {# is common in shell scripts
        comment_end_string="#>",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(template).render(job.as_variables())
