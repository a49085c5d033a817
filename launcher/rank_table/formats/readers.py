"""The table of formats that are read: what makes rows of a document, and records of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from launcher.core.records import Cluster
from launcher.rank_table.formats import Format, group_list, node_list, rank_list, server_list
from launcher.rank_table.profile import Profile
from launcher.rank_table.rows import Table
from launcher.rank_table.shape import Fields, Shapes


class Reader(NamedTuple):
    read: Callable[[Fields, Shapes, Profile], Table]
    cluster: Callable[[Table], Cluster]  # only for a table without errors


READERS = {
    Format.V1_0: Reader(server_list.read, server_list.cluster),
    Format.V1_1: Reader(node_list.read, node_list.cluster),
    Format.V1_2: Reader(server_list.read, server_list.cluster),
    Format.V2_0: Reader(rank_list.read, rank_list.cluster),
    Format.LAB: Reader(group_list.read_lab, group_list.lab_cluster),
    Format.CLOUD: Reader(group_list.read_cloud, group_list.cloud_cluster),
}
