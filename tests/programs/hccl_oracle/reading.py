"""What all parsers share: JSON as nlohmann::json reads it, topoinfo_ranktableParser.cc, numbers, addresses."""

from __future__ import annotations

import json
import math
import re
import socket
from collections.abc import Callable
from typing import Any, NamedTuple

U32 = 0xFFFFFFFF


class RefusedError(Exception):
    """HCCL would give up, for the reason that is said."""


class Address(NamedTuple):
    """HcclIpAddress: a family and bytes. It is unset where it is IPv4 and zero."""

    family: int
    packed: bytes

    @property
    def unset(self) -> bool:
        return self.family == 4 and not any(self.packed)


UNSET = Address(4, bytes(4))


class Rank(NamedTuple):
    """RankInfo_t, as far as it comes from the table."""

    rank: int
    server: str
    device: int
    ips: tuple[Address, ...]
    host: Address
    on_host: bool = False  # net_position
    sdid: int = U32
    pod: str = ""


class Cluster(NamedTuple):
    """RankTable_t: what a parser leaves behind."""

    ranks: list[Rank]
    server_num: int
    device_num: int
    nic_is_known: bool = True


def need(holds: object, otherwise: str) -> None:
    if not holds:
        raise RefusedError(otherwise)


def parse(data: bytes) -> tuple[Any, str]:
    """The first value of the text and what follows it. Strict JSON in UTF-8, no number beyond a double (error 406)."""

    def refuse(name: str) -> Any:
        raise RefusedError(f"nlohmann: {name} is no JSON")

    def number(convert: Callable[[str], Any]) -> Callable[[str], Any]:
        def read(digits: str) -> Any:
            need(math.isfinite(float(digits)), "nlohmann: number overflow")
            return convert(digits)

        return read

    decoder = json.JSONDecoder(parse_constant=refuse, parse_int=number(int), parse_float=number(float))
    try:
        text = data.decode("utf-8-sig").lstrip(" \t\r\n")
        value, end = decoder.raw_decode(text)
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise RefusedError(f"nlohmann: {type(error).__name__}") from None
    return value, text[end:]


def size(value: Any) -> int:
    """The size of a value to nlohmann: null has none, a scalar is one."""
    return 0 if value is None else len(value) if isinstance(value, list | dict) else 1


def text_of(holder: Any, key: str, *, optional: bool = False) -> str | None:
    """GetJsonProperty and GetJsonArrayMemberProperty for std::string: there, and a string."""
    if not isinstance(holder, dict) or key not in holder:
        need(optional, f"Parser GetJsonProperty: no {key}")
        return None
    need(isinstance(holder[key], str), f"Parser GetJsonProperty: {key} is no string")
    return holder[key]


def list_of(holder: Any, key: str, *, optional: bool = False) -> Any:
    """GetJsonProperty for nlohmann::json: there, and of a size that is not zero."""
    if not isinstance(holder, dict) or key not in holder:
        need(optional, f"Parser GetJsonProperty: no {key}")
        return None
    need(size(holder[key]), f"Parser GetJsonProperty: {key} is empty")
    return holder[key]


def members(value: Any, what: str) -> list[Any]:
    """GetJsonArrayMemberProperty: the value whose members are asked for is an array."""
    need(isinstance(value, list), f"Parser GetJsonArrayMemberProperty: {what} is no array")
    return list(value)


def unsigned(text: str, what: str) -> int:
    """SalStrToULong: std::stoull, which skips blanks and ignores what follows; 32 bits at most."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)([0-9]+)", text)
    need(match, f"SalStrToULong: {what} is no number")
    assert match is not None
    value = int(match[2])
    need(value < 2**64, f"SalStrToULong: {what} out of range")
    value = -value % 2**64 if match[1] == "-" else value
    need(value <= U32, f"SalStrToULong: {what} out of range")
    return value


def signed(text: str, what: str) -> int:
    """SalStrToInt: std::stoi."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", text)
    need(match is not None and -(2**31) <= int(match[1]) < 2**31, f"SalStrToInt: {what} is no number")
    assert match is not None
    return int(match[1])


def address(text: str) -> Address:
    """hccl_ip_address.cc SetReadableAddress, behind ConvertIpAddress."""
    at = text.find("%")
    need(text and at != 0 and at != len(text) - 1, "ConvertIpAddress: no address")
    bare = (text if at < 0 else text[:at]).split("\0", maxsplit=1)[0]
    is_6 = (text if at < 0 else text[:at]).count(":") >= 2
    try:
        return Address(6 if is_6 else 4, socket.inet_pton(socket.AF_INET6 if is_6 else socket.AF_INET, bare))
    except (OSError, ValueError):
        raise RefusedError("ConvertIpAddress: no address") from None


class Pool:
    """CheckUniqueAndInsertPool with CheckUniquePara: names of at most 127 bytes and set addresses, each once."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def name(self, kind: str, text: str) -> None:
        need(len(text.encode()) <= 127, f"CheckUniquePara: {kind} is too long")
        self._insert(kind, text)

    def ip(self, text: str) -> Address:
        found = address(text)
        need(not found.unset, "CheckUniquePara: device_ip is no valid address")
        self._insert("device_ip", text)
        return found

    def _insert(self, kind: str, text: str) -> None:
        need((kind, text) not in self._seen, f"CheckUniqueAndInsertPool: {kind} repeated")
        self._seen.add((kind, text))
