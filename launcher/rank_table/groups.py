"""Rows of the two formats without a version: groups of instances, which servers are put together from."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

from launcher.core.frozen import frozen
from launcher.rank_table.places import Pointer
from launcher.rank_table.rows import Table


class InstanceRow(NamedTuple):
    """What a table says about one instance: a process in a lab, a pod in a cloud."""

    pointer: Pointer
    fields: dict[str, Any]
    server_id: str | None
    entry_count: int  # how many of its devices are objects, as they should be

    @property
    def device_count(self) -> int | None:
        """How many devices it lists, whatever is wrong with them; None where it has no list of them."""
        return entry_count(self.fields, "devices")


class GroupRow(NamedTuple):
    """What a table says about one group."""

    pointer: Pointer
    fields: dict[str, Any]
    instances: tuple[InstanceRow, ...]

    @property
    def instance_count(self) -> int | None:
        """How many instances it lists, whatever is wrong with them; None where it has no list of them."""
        return entry_count(self.fields, "instance_list")


@frozen
class GroupTable(Table):
    """A table whose servers follow from its instances. Invariant: an instance without server_id is a server of its own."""

    groups: tuple[GroupRow, ...] = ()

    @cached_property
    def servers_are_complete(self) -> bool:
        """Whether each instance names its server and nothing is lost, so that devices can be counted per server."""
        return all(server.server_id for server in self.servers) and all(map(_is_complete, self.groups))

    @cached_property
    def ranks_are_sound(self) -> bool:
        return self.servers_are_complete and super().ranks_are_sound


def groups_of(table: Table) -> tuple[GroupRow, ...]:
    """The groups of a table; other formats have none."""
    return table.groups if isinstance(table, GroupTable) else ()


def _is_complete(group: GroupRow) -> bool:
    found = all(instance.entry_count == (instance.device_count or 0) for instance in group.instances)
    return found and len(group.instances) == (group.instance_count or 0)


def entry_count(fields: dict[str, Any], key: str) -> int | None:
    """The length of a list; None where there is none or an empty one, which is a fault of its own."""
    value = fields.get(key)
    return len(value) if isinstance(value, list) and value else None
