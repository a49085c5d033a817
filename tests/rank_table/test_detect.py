"""Which *.json files are looked at without being named."""

import pytest

from launcher.rank_table.detect import looks_like_table, named_like_table
from launcher.rank_table.document import parse_document


@pytest.mark.parametrize(("text", "expected"), [
    ('{"version": "1.0", "server_list": []}', True),
    ('{"server_count": "1"}', True), ('{"deploy_mode": "lab"}', True),
    ('{"version": "2.0", "rank_list": []}', True),
    ('{"prefill_device_list": []}', True), ('{"server_id": "10.0.0.1",', True), ("{}", False), ("[1]", False),
    ('{"version": "1.0"}', False), ('{"server_list": ["a", "b"]}', False), ('{"dependencies": {},', True), ("", True),
    ("\0", True), ('{"name": "x", "pad": tru', True), ("// settings\n{}", False), ('\ufeff{"name": "x",}', False),
    ('{"loss": NaN, "best": -Infinity}', False), ("{name: 'x'}", False), ('{"largest": 1e999}', False),
    ('{"rank_id": NaN}', True), ('{"device_id": "0",} // table', True),
])  # fmt: skip
def test_keys_and_words_of_tables_tell(text, expected):
    data = text.encode()
    assert looks_like_table(data, parse_document(data)) is expected


@pytest.mark.parametrize(("name", "expected"), [
    ("rank_table_8pcs.json", True), ("ranktable.json", True), ("Rank-Table.json", True),
    ("hccl_8p_01234567_10.0.0.1.json", True), ("jobstart_hccl.json", True), ("global_ranktable.json", True),
    ("table.json", False), ("franktable.json", False), ("package.json", False),
])  # fmt: skip
def test_names_of_tables_tell(name, expected):
    assert named_like_table(name) is expected


def test_words_are_found_in_any_encoding():
    data = '{"device_id": "0"}'.encode("utf-16")
    assert looks_like_table(data, parse_document(data))
