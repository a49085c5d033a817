"""Error codes of HCCL that users look up after a failed run: their meaning, and where to look next."""

from __future__ import annotations

from typing import NamedTuple


class HcclCode(NamedTuple):
    title: str
    explanation: str


HCCL_CODES = {
    "EI0001": HcclCode(
        "an environment variable or a kind of address is not what HCCL expects",
        "HCCL names the variable and its value in the message. Of a table's faults only one has this code: addresses of "
        "IPv4 and of IPv6 side by side.",
    ),
    "EI0003": HcclCode(
        "a parameter of a collective operation is invalid",
        "A count, a data type, a root or a group of ranks makes no sense to HCCL; the message names it. A valid table does "
        "not cause it: look at the call, and at the groups that the program makes.",
    ),
    "EI0004": HcclCode(
        "the rank table cannot be used",
        "Before CANN 8.3 any fault of the table has this code, also what is EI0014 or EI0017 since; the reason stands in "
        "brackets. Since 8.3 it is left for a file that cannot be read, is no JSON, or is not completed in time.",
    ),
    "EI0005": HcclCode(
        "ranks do not agree with each other",
        "The ranks have different tables, or call an operation with different parameters. HCCL compares a checksum of each "
        "node's table: `tlaunch table diff A B` says whether two files would match.",
    ),
    "EI0006": HcclCode(
        "a connection to another rank timed out",
        "The other rank did not answer within HCCL_CONNECT_TIMEOUT (120 s unless set): it never started, failed earlier, "
        "reads another table, or cannot be reached at its device_ip. Look for the rank that failed first.",
    ),
    "EI0009": HcclCode(
        "a transport between two ranks could not be set up",
        "The ranks found each other and could not agree on a link. Look at the state of both devices' network cards "
        "(`hccn_tool -i ID -net_health -g`) and for another error before this one.",
    ),
    "EI0014": HcclCode(
        "a value in the rank table is invalid",
        "Since CANN 8.3 the message names the variable of the table, its value and what was expected. Before 8.3 such "
        "faults were EI0004, and EI0014 meant that a device_ip is not the address of that device's network card: "
        "`hccn_tool -i ID -ip -g` shows it.",
    ),
    "EI0015": HcclCode(
        "the ranks did not gather around the root in time",
        "Without a table ranks find each other through a root; some did not arrive there in time, or the root cannot be "
        "reached. Look for ranks that never started or failed earlier, and at the root's address and port.",
    ),
    "EI0016": HcclCode(
        "the TLS switch differs between devices",
        "Either all network cards of a cluster use TLS or none: `hccn_tool -i ID -tls -g` shows the setting of each device.",
    ),
    "EI0017": HcclCode(
        "something is missing in the rank table",
        "Since CANN 8.3 a key or a list that HCCL needs, and does not find, has this code; before, it was EI0004.",
    ),
    "EI0019": HcclCode(
        "a port cannot be bound",
        "Another process uses it, often a rank of an earlier run: HCCL takes 60000 to 60031 on the server and 16666 on the "
        "device, unless the environment or the table says otherwise.",
    ),
    "EJ0001": HcclCode(
        "the device's side of HCCL could not be initialised",
        "Usually an earlier job still holds the device, or has only just ended: look for its processes with "
        "`npu-smi info`, and start again when they are gone.",
    ),
}
