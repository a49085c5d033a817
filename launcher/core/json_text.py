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
        return json.dumps(_finite(value), indent=INDENT, allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
