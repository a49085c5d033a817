"""Messages to and from the agent: one JSON object per line.

The standard json package is not used, since the program may have its own `json.py` or `enum.py`.
"""

from __future__ import annotations

import os
from _json import encode_basestring_ascii, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Rules:
    """The settings that `json`'s C scanner expects."""

    strict = False
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float

    def __init__(self) -> None:
        self.memo: dict[str, str] = {}


def to_json(value: Any) -> str:
    """Serialise None, booleans, integers, floats, strings and dictionaries of these."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return str(encode_basestring_ascii(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{to_json(key)}: {to_json(item)}" for key, item in value.items()) + "}"
    return repr(value)


class Connection:
    """The socket to the agent, shared by forked processes. Each line is one write, so lines are never mixed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._received = b""

    def receive(self) -> Any:
        """Wait for the next message and return it; None if the connection is closed."""
        while b"\n" not in self._received:
            try:
                chunk = os.read(self._descriptor, 1 << 20)
            except OSError:
                return None
            if not chunk:
                return None
            self._received += chunk
        line, _, self._received = self._received.partition(b"\n")
        scan: Any = make_scanner(_Rules())  # type: ignore[arg-type]
        return scan(os.fsdecode(line), 0)[0]

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; return False if the agent no longer listens."""
        try:
            os.write(self._descriptor, to_json(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)
