"""Put a repaired text in place of the file that it was read from."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from launcher.core.atomic import replacing
from launcher.core.errors import UnreadableError, UsageError
from launcher.rank_table.files import read_bytes


def overwrite(path: Path, original: bytes, data: bytes) -> None:
    """Replace the file at `path`, which held `original`, by `data`: written aside and renamed, with the same mode.

    A symbolic link stays one; the file that it leads to is replaced. The owner is kept where that is permitted.

    Raises:
        UsageError: there is no regular file, but a pipe or a device.
        UnreadableError: it holds something else by now, or it cannot be replaced.
    """
    try:
        target = path.resolve(strict=True)
        status = target.stat()
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is no regular file, so it cannot be replaced", hint="use - and a redirection")
        with replacing(target) as aside:
            aside.touch(mode=0o600)
            aside.write_bytes(data)
            with suppress(PermissionError):
                os.chown(aside, status.st_uid, status.st_gid)
            aside.chmod(stat.S_IMODE(status.st_mode))
            if target.stat().st_size != len(original) or read_bytes(target, len(original)) != original:
                raise UnreadableError(f"{path} was changed meanwhile, and is left as it is", hint="run this again")
    except OSError as error:
        raise UnreadableError(f"{path} cannot be replaced: {error.strerror}") from None
