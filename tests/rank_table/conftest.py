"""The makers of tables, and the report on one, that the tests of this room share."""

import json
from pathlib import Path

import pytest

from launcher.core.errors import UsageError
from launcher.rank_table import Profile, read_rank_table

from .tables import make_table


def error_of(function, *arguments, kind=UsageError):
    with pytest.raises(kind) as caught:
        function(*arguments)
    assert caught.value.hint
    return caught.value.message


@pytest.fixture
def table():
    return make_table


@pytest.fixture
def report(tmp_path):
    """Read JSON values, a text or bytes as a table: the report."""

    def read(content, *, chip="auto", name="table.json", profile=None):
        path = Path(tmp_path) / name
        if not isinstance(content, str | bytes):
            content = json.dumps(content, indent=2)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_rank_table(path, profile or Profile(chip))

    return read
