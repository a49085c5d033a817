"""tlaunch: start distributed Transformer training from a rank table.

`launcher.launch(command, devices=..., ...)` runs from Python what `tlaunch run` runs.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; to import `typing` would cost every process of a run
if TYPE_CHECKING:
    from launcher.cli.launch.api import LaunchResult, launch

__all__ = ["LaunchResult", "__version__", "launch"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Import what Python programs use when they use it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as above

    return getattr(import_module("launcher.cli.launch.api"), name)
