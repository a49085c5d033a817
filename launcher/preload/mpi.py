"""A rank that fails must not wait for the others in MPI_Finalize, which mpi4py calls at the very end: they wait for it.

A rank that raises while others are in a collective operation would hang, and so would they: nobody would see a failure.
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
    """The program ends with this status, which is not 0. Does nothing outside of a world of several ranks."""
    if _waits_in_finalize(sys.modules.get("mpi4py.MPI")):
        import atexit

        pid = os.getpid()
        atexit.register(lambda: _leave(status, pid))


def _waits_in_finalize(mpi: Any) -> bool:
    if mpi is None or sys.modules["mpi4py"].rc.finalize is False:
        return False
    return bool(mpi.Is_initialized() and not mpi.Is_finalized() and mpi.COMM_WORLD.Get_size() > 1)


def _leave(status: int, pid: int) -> None:
    """Registered last and called first: all others come before the end."""
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
