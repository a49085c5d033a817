"""tlaunch's own package. Programs use the same functions as `import tlaunch`; `import launcher` works too, if they have no `launcher`.

To change how a process of tlaunch finds this package: core/resources.py, _tlaunch_command.py, tlaunch/_package.py,
    tlaunch/_user_package.py (never `python -m`, which searches the current directory first).
To change the public names: __init__.py, tlaunch/__init__.py (both list the same names).
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as type checkers know it; to import `typing` would cost every process of a run
if TYPE_CHECKING:
    from launcher.cli.launch.api import LaunchResult, launch
    from launcher.core.errors import TlaunchError
    from launcher.core.reporting import beat, metric

__all__ = ["LaunchResult", "TlaunchError", "__version__", "beat", "launch", "metric"]
__version__ = "0.1.0"

_API, _ERRORS, _REPORTING = ".cli.launch.api", ".core.errors", ".core.reporting"
_MODULE_OF = {"LaunchResult": _API, "TlaunchError": _ERRORS, "beat": _REPORTING, "launch": _API, "metric": _REPORTING}


def __getattr__(name: str) -> object:
    """Import what Python programs use when they use it."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - as above

    # `import tlaunch` may have loaded the module from its copy of this package (tlaunch/_user_package.py).
    module = sys.modules.get("_tlaunch_launcher" + _MODULE_OF[name]) or import_module(_MODULE_OF[name], __name__)
    return getattr(module, name)


def __dir__() -> list[str]:
    return __all__
