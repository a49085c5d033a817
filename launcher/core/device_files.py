"""The accelerators that the kernel shows this process as files. No driver is asked, so that nothing can hang."""

from __future__ import annotations

import re
from pathlib import Path

DEVICE_FILES = Path("/dev")
_DAVINCI = re.compile(r"davinci([0-9]{1,6})")  # Ascend; davinci_manager is no device
_NVIDIA = re.compile(r"nvidia([0-9]{1,6})")  # nvidiactl and nvidia-uvm are no devices


def davinci_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the ids of the Ascend devices of this machine, ascending; empty if there are none."""
    return _numbers(_DAVINCI, directory)


def nvidia_ids(directory: Path = DEVICE_FILES) -> tuple[int, ...]:
    """Return the minor numbers of NVIDIA's devices that this process may open, ascending; empty if there are none."""
    return _numbers(_NVIDIA, directory)


def _numbers(pattern: re.Pattern[str], directory: Path) -> tuple[int, ...]:
    found = directory.iterdir() if directory.is_dir() else ()
    return tuple(sorted(int(match[1]) for path in found if (match := pattern.fullmatch(path.name))))
