"""An oracle: does HCCL refuse a rank table? Written from its published source, and from nothing of the launcher.

Each function names the file and the function of `hcomm` (the library that HCCL's parsers moved to in 2026) that it
follows, and raises `RefusedError` where that one returns an error. Two libraries are followed:

* src/legacy/ascend910/framework (named by file alone), which reads every format but v2.0: its parsers, config.cc, and
  what HcclCommunicatorAttrs::InitRankInfo asks of the table alone before a communicator exists;
* src/legacy/ascend950/framework/topo/new_topo_builder/rank_table_info, which reads v2.0.

Left out is what depends on more than the table: the environment (backup cards, for instance), the driver's answers, the
process that asks, and for v1.1 everything after the parser. Variables have their defaults.
"""

from __future__ import annotations

from .a5 import rank_table_info
from .config import by_version
from .reading import RefusedError, need, parse

CHIPS = ("910", "a2", "a3", "300i", "a5")


def refusal(data: bytes, chip: str) -> str | None:
    """Why HCCL on `chip` refuses the file with these bytes; None where it reads it."""
    try:
        document, rest = parse(data)
        if chip == "a5":
            need(not rest.strip(" \t\r\n"), "json_parser.h ParseString: text after the table")
            rank_table_info(document)
        else:
            by_version(document, chip)
    except RefusedError as reason:
        return str(reason)
    return None
