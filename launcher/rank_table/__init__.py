"""Rank tables: read, check, explain, and write them. Importing this package does not load pydantic.

To change a rule: rules/, formats/ (`tlaunch table explain` prints the rule's docstring; then run
    scripts/rank_table_codes.py).
To change a format: table_format.py, check.py, convert.py, detect.py, formats/writing.py (add a folder to formats/;
    rules read rows of model.py, not the text).
To change how lists of hosts are read: hostfiles.py, nodelists.py (convert them to a `Cluster`, like rank tables).
"""

from launcher.core.records import Cluster
from launcher.rank_table.catalogue import Severity
from launcher.rank_table.diagnostics import Problem, headline
from launcher.rank_table.profile import CHIPS, CONSUMERS, Profile
from launcher.rank_table.table_reader import TableReport, load_cluster, parse_rank_table, read_rank_table

__all__ = [
    "CHIPS",
    "CONSUMERS",
    "Problem",
    "Profile",
    "Severity",
    "TableReport",
    "headline",
    "load_cluster",
    "parse_rank_table",
    "read_rank_table",
    "render_table",
]


def render_table(cluster: Cluster) -> str:
    """Return the text of a cluster's rank table. The format is v1.2 if the cluster has super pods, else v1.0.

    Equal clusters give the same text on every node, because HCCL compares checksums of the files: the order of keys is
    fixed, and each device has one line. Reading the text returns the same cluster. Missing addresses are left out.

    Raises:
        RefusedTableError: the cluster has something that neither format supports, such as ranks on the host.
    """
    from launcher.rank_table.convert import convert_cluster, has_super_pods  # noqa: PLC0415 - reading needs no writers

    return convert_cluster(cluster, "v1.2" if has_super_pods(cluster) else "v1.0").text
