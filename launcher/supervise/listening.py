"""The registrations of a selector for files that come and go while its loop runs."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

# What to listen to, or None where it is not there at present; for which events; and what to call.
Wanted = tuple[Any, int, Callable[[], object]]


class Listening:
    """Keeps account of it by what each thing is for."""

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._known: dict[str, tuple[Any, int]] = {}

    def choose(self, wanted: Mapping[str, Wanted]) -> None:
        """Listen to these, and to nothing else that was chosen before, whether that is closed by now or not."""
        stays = {purpose for purpose, (what, events, _) in wanted.items() if self._known.get(purpose) == (what, events)}
        for purpose in self._known.keys() - stays:
            self.forget(purpose)
        # Only then: what was opened after something was closed may have the number of its descriptor.
        for purpose, (what, events, react) in wanted.items():
            if purpose not in stays and what is not None:
                self._selector.register(what, events, react)
                self._known[purpose] = what, events

    def forget(self, purpose: str) -> None:
        known = self._known.pop(purpose, None)
        if known is not None:
            with suppress(KeyError, ValueError):
                self._selector.unregister(known[0])
