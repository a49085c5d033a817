"""Exit codes."""

import pytest

from launcher.core.errors import (
    RefusedLayoutError,
    RefusedTableError,
    TlaunchError,
    UnreadableError,
    UsageError,
    exit_code_of,
)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [(TlaunchError, 1), (UsageError, 2), (UnreadableError, 2), (RefusedTableError, 3), (RefusedLayoutError, 3)],
)
def test_every_error_owns_its_exit_code(error, exit_code):
    assert error("x").exit_code == exit_code


def test_an_error_reads_as_message_then_hint():
    assert str(UsageError("no such thing", hint="try another")) == "no such thing\nhint: try another"


@pytest.mark.parametrize(("status", "code"), [(0, 0), (7, 7), (-9, 137), (-15, 143)])
def test_a_signal_becomes_128_and_its_number(status, code):
    assert exit_code_of(status) == code
