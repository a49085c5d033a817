"""JSON as every reader takes it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
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


def finite(value: Any) -> Any:
    """A copy of `value` that JSON can hold: None for NaN and infinities, however deep they stand."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    return [finite(each) for each in value] if isinstance(value, list | tuple) else value
