"""What errors say, and their exit codes."""

from launcher.core.errors import RefusedLayoutError, RefusedTableError, TlaunchError, UnreadableError, UsageError


def test_every_error_owns_its_exit_code():
    codes = {TlaunchError: 1, UsageError: 2, UnreadableError: 2, RefusedTableError: 3, RefusedLayoutError: 3}
    assert {error: error("x").exit_code for error in codes} == codes
