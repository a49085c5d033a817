"""Counts that repeat the length of a list: what to say where the two differ, for then either may be the wrong one."""

from __future__ import annotations

MAX_PORT = 65535


def counted_hint(number: str, written: int | None, found: int, what: str) -> str:
    """Return what to write instead of a count, as JSON, and where entries seem to be missing what else may be done."""
    missing = (written or 0) - found
    if missing <= 0:
        return f"write {number}"
    return f"write {number}, or add the missing {what}{'s' if missing > 1 else ''}"


def counted_doubt(key: str, written: int | None, found: int, what: str) -> str:
    """Return why nobody but a person may correct a count: what else the difference can mean."""
    if written is None:
        return f"{key} says no number, so the table may have lost a {what}"
    apart = abs(written - found)
    some = f"a {what}" if apart == 1 else f"{apart} {what}s"
    if written > found:
        return f"either the table lost {some}, or {key} is stale"
    return f"either {key} is stale, or the table has {some} too many"
