"""Which *.json files that nobody named are looked at."""

from __future__ import annotations

import pytest

from launcher.rank_table.document import parse_document
from launcher.rank_table.likeness import looks_like_table


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"version": "1.0", "server_list": []}', True),
        ('{"server_count": "1"}', True),
        ('{"deploy_mode": "lab"}', True),
        ('{"version": "2.0", "rank_list": []}', True),
        ('{"prefill_device_list": []}', True),
        ('{"server_id": "10.0.0.1",', True),
        ("{}", False),
        ("[1]", False),
        ('{"version": "1.0"}', False),
        ('{"server_list": ["a", "b"]}', False),
        ('{"dependencies": {},', False),
        ("", False),
    ],
)
def test_keys_and_words_of_tables_tell(text, expected):
    """Keys of tables and of related files count; in broken text the ids that tables are made of."""
    data = text.encode()
    assert looks_like_table(data, parse_document(data)) is expected


def test_words_are_found_in_any_encoding():
    """A table saved as UTF-16 is a broken table, not another file."""
    data = '{"device_id": "0"}'.encode("utf-16")
    assert looks_like_table(data, parse_document(data))
