"""The rules for v1.0 tables. Importing this enters all of them into the catalogue."""

from launcher.rank_table.rules import addresses, chip_910, conventions, identity, ranks, servers

__all__ = ["addresses", "chip_910", "conventions", "identity", "ranks", "servers"]
