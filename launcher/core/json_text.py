"""JSON that every reader accepts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

INDENT = 2


def json_text(value: Any) -> str:
    r"""Return `value` as indented JSON with a final newline; null for NaN and infinities, which JSON does not have.

    >>> json_text({"loss": float("nan")})
    '{\n  "loss": null\n}\n'
    """
    try:
        return json.dumps(value, indent=INDENT, allow_nan=False) + "\n"
    except ValueError:  # rare, and a copy of a large value is dear
        return json.dumps(finite(value), indent=INDENT, allow_nan=False) + "\n"


def digest_of_meaning(content: bytes) -> str:
    """Return a digest that is equal for texts of equal meaning: white space and the order of keys do not matter.

    Text that is not JSON is digested byte for byte.

    >>> digest_of_meaning(b'{"a": 1, "b": 2}') == digest_of_meaning(b'{"b":2,"a":1}')
    True
    """
    with suppress(ValueError, RecursionError):
        content = json.dumps(json.loads(content), sort_keys=True).encode()
    return sha256(content).hexdigest()


def finite(value: Any) -> Any:
    """Return a copy of `value` that JSON can hold: with None for NaN and infinities at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value
