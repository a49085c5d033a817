"""The rules, by topic. Importing this enters all of them into the catalogue."""

from launcher.rank_table.rules import (
    addresses,
    backups,
    chip_910,
    chips,
    consumers,
    conventions,
    group_list,
    identity,
    net_layers,
    node_list,
    rank_list,
    ranks,
    segments,
    servers,
    super_pods,
)

__all__ = [
    "addresses",
    "backups",
    "chip_910",
    "chips",
    "consumers",
    "conventions",
    "group_list",
    "identity",
    "net_layers",
    "node_list",
    "rank_list",
    "ranks",
    "segments",
    "servers",
    "super_pods",
]
