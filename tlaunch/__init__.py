"""Start distributed training from Python, and report the progress of a training script.

`tlaunch.launch(command, devices=..., ...)` is the Python equivalent of `tlaunch run`. A script started by tlaunch calls
`tlaunch.beat(step, ...)` and `tlaunch.metric(step, ...)` to appear in `tlaunch status`, `top` and `report`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers treat it as true; importing `typing` would slow every process of a run
if TYPE_CHECKING:
    from launcher import (
        FunctionResult,
        LaunchResult,
        Run,
        RunFailedError,
        TlaunchError,
        __version__,
        beat,
        launch,
        metric,
    )

__all__ = [
    "FunctionResult", "LaunchResult", "Run", "RunFailedError", "TlaunchError", "__version__", "beat", "launch", "metric",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Import an API name on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tlaunch._user_package import package_for  # noqa: PLC0415 - as above

    return getattr(package_for(name), name)


def __dir__() -> list[str]:
    return __all__
