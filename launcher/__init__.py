"""tlaunch: start distributed Transformer training from a rank table.

`launcher.launch(command, devices=..., ...)` runs from Python what `tlaunch run` runs. A training that it starts calls
`launcher.beat(step, ...)` and `launcher.metric(step, ...)` to be seen in `tlaunch status`, `top` and `report`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; to import `typing` would cost every process of a run
if TYPE_CHECKING:
    from launcher.cli.launch.api import LaunchResult, launch
    from launcher.core.reporting import beat, metric

__all__ = ["LaunchResult", "__version__", "beat", "launch", "metric"]
__version__ = "0.1.0"

_API, _REPORTING = "launcher.cli.launch.api", "launcher.core.reporting"
_MODULE_OF = {"LaunchResult": _API, "launch": _API, "beat": _REPORTING, "metric": _REPORTING}


def __getattr__(name: str) -> object:
    """Import what Python programs use when they use it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as above

    return getattr(import_module(_MODULE_OF[name]), name)
