"""A cluster back to the text of a table, in the simplest format that can express it."""

from __future__ import annotations

from launcher.core.records import Cluster


def render_table(cluster: Cluster) -> str:
    """The canonical v1.0 table, or v1.2 where there are super pods: fixed order of keys, one line per device.

    Equal clusters give equal text on every node, which HCCL compares by checksum. Reading it gives the same cluster
    again. An address that the cluster does not have is left out, never invented.

    Raises:
        RefusedTableError: the cluster has what neither format can express, such as ranks on the host.
    """
    from launcher.rank_table.convert import convert_cluster  # noqa: PLC0415  # reading alone needs no writers

    return convert_cluster(cluster, "v1.2" if has_super_pods(cluster) else "v1.0").text


def has_super_pods(cluster: Cluster) -> bool:
    return any(server.super_pod_id is not None for server in cluster.servers)
