"""Import tlaunch's package `launcher` from the directory next to this one, independent of `sys.path`.

Many projects have a package or module `launcher`. Processes of tlaunch claim the name before any other import.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec  # a light program need not load importlib
from _frozen_importlib_external import SourceFileLoader, spec_from_file_location

NAME = "launcher"
DIRECTORY = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), NAME)  # noqa: PTH100, PTH118, PTH120
FILE = DIRECTORY + "/__init__.py"


def claim_name() -> None:
    """Import tlaunch's package as `launcher`. Call this only in processes of tlaunch."""
    if NAME not in sys.modules:
        load(NAME, SourceFileLoader)


def load(name: str, kind: type[SourceFileLoader]) -> None:
    """Import tlaunch's package as `name`."""
    loader = kind(name, FILE)
    spec = spec_from_file_location(name, FILE, loader=loader, submodule_search_locations=[DIRECTORY])
    assert spec is not None, "there is a loader"
    sys.modules[name] = module = module_from_spec(spec)
    loader.exec_module(module)


if not __package__:  # imported from this directory, which only processes of tlaunch do
    claim_name()
