"""The `launcher` package. Programs use `import tlaunch`, which exports the same functions.

To change how a process of tlaunch finds this package: core/resources.py, _tlaunch_command.py, tlaunch/_package.py,
    tlaunch/_user_package.py (do not use `python -m`, which searches the current directory first).
To change the public names: __init__.py, tlaunch/__init__.py (both files list the same names).
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # type checkers treat this as true; importing `typing` would slow the start of every rank
if TYPE_CHECKING:
    from launcher.cli.launch.api import FunctionResult, LaunchResult, Run, RunFailedError, launch
    from launcher.core.errors import TlaunchError
    from launcher.core.reporting import beat, metric

__all__ = [
    "FunctionResult", "LaunchResult", "Run", "RunFailedError", "TlaunchError", "__version__", "beat", "launch", "metric",
]  # fmt: skip
__version__ = "0.2.0"

_API, _ERRORS, _REPORTING = ".cli.launch.api", ".core.errors", ".core.reporting"
_MODULE_OF = dict.fromkeys(__all__, _API) | {"TlaunchError": _ERRORS, "beat": _REPORTING, "metric": _REPORTING}


def __getattr__(name: str) -> object:
    """Import public names lazily, on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # `import tlaunch` may have loaded the module under another package name (tlaunch/_user_package.py).
    module = sys.modules.get("_tlaunch_launcher" + _MODULE_OF[name]) or import_module(_MODULE_OF[name], __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
