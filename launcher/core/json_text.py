"""JSON as every reader takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from typing import Any

INDENT = 2


def json_text(value: Any) -> str:
    r"""`value` as an indented text that ends with its line; null for NaN and infinities, which JSON does not have.

    >>> json_text({"loss": float("nan")})
    '{\n  "loss": null\n}\n'
    """
    try:
        return json.dumps(value, indent=INDENT, allow_nan=False) + "\n"
    except ValueError:  # rare, and a copy of a large value is dear
        return json.dumps(finite(value), indent=INDENT, allow_nan=False) + "\n"


def digest_of_meaning(content: bytes) -> str:
    """Alike for texts that say the same: white space and the order of keys do not matter. What is no JSON has its bytes.

    >>> digest_of_meaning(b'{"a": 1, "b": 2}') == digest_of_meaning(b'{"b":2,"a":1}')
    True
    """
    with suppress(ValueError, RecursionError):
        content = json.dumps(json.loads(content), sort_keys=True).encode()
    return sha256(content).hexdigest()


def finite(value: Any) -> Any:
    """A copy of `value` that JSON can hold: None for NaN and infinities, however deep they stand."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value
