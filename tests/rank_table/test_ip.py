"""Addresses that are none: the part that is to blame."""

import pytest

from launcher.rank_table.ip import address_family, why_no_address


@pytest.mark.parametrize(("address", "part"), [
    ("10.277.0.10", "277"), ("10.1.0.0256", "0256"), ("10.01.0.10", "01"), ("10.1.O.1", '"O"'), ("10.-1.1.1", '"-1"'),
    ("10..1.1", "missing"), ("10.1.1", "3 numbers"), ("10.1.1.1.1", "5 numbers"), ("10.1.1.1/24", "prefix"),
    ("10.1.1.1:80", "port"), ("10.1.1.1;10.1.1.2", "comma"), (" 10.1.1.1", "blank"), ("", "empty"),
    ("fe80::1::2", '"::"'), ("fe80::12345", '"12345"'), ("1:2:3", "3 groups"), ("fe80::1%", "%"),
])  # fmt: skip
def test_the_part_that_keeps_a_text_from_being_an_address_is_named(address, part):
    assert address_family(address) is None
    assert part in why_no_address(address)


@pytest.mark.parametrize("address", ["node1", "-.-.-.-", "<address>", "xx.xx.xx.xx"])
def test_what_was_never_meant_as_numbers_is_not_taken_apart(address):
    assert why_no_address(address) == ""
