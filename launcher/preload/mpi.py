"""The end of a failed MPI rank: it must not wait in MPI_Finalize, which mpi4py calls last, for ranks that wait for it.

A rank that raises while others are in a collective operation would hang, and so would they: no failure would show.
So it ends as soon as its own work at exit is done. (`python -m mpi4py` calls MPI_Abort instead, and no rank gets grace.)
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_leaving = False


def leave_with(status: int) -> None:
    """End with this status, which is not 0, after all other work at exit. Do nothing unless the world has several ranks."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or sys.modules["mpi4py"].rc.finalize is False:
        return
    if mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1:
        import atexit

        pid = os.getpid()
        atexit.register(lambda: _leave(status, pid))


def _leave(status: int, pid: int) -> None:
    """Run what else is registered, and end. This was registered last and is called first."""
    global _leaving  # noqa: PLW0603 - calling the others calls this one again
    if _leaving or os.getpid() != pid:
        return
    _leaving = True
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(status)
