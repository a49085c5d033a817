"""Servers that are well, to be made ill one thing at a time."""

from dataclasses import replace

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.doctor.facts import Facts, Folder, Interface, Limit, Resolved
from launcher.doctor.findings import judge
from launcher.doctor.reach import Attempt, Outcome

GIB = 1 << 30


class Ward:
    """`count` servers h1, h2, ... without accelerators, and what the judge says of them."""

    def __init__(self, count, ranks=2):
        self.cluster = Cluster(
            tuple(
                Server(f"h{index + 1}", tuple(Device(local, index * ranks + local) for local in range(ranks)))
                for index in range(count)
            )
        )
        self.facts = {index: self._well(index, count) for index in range(count)}
        self.reach = {
            index: tuple(Attempt(other, f"h{other + 1}", Outcome.REACHED, f"10.0.0.{other + 1}", 0.0002, got_large=other != index)
                         for other in (*range(index), *range(index + 1, count), index))
            for index in range(count)
        }  # fmt: skip
        self.offsets_s = dict.fromkeys(range(count), 0.001)
        self.troubles = {}
        self.join_failures = {}

    def _well(self, index, count):
        folder = Folder(
            "/somewhere", total_bytes=500 * GIB, free_bytes=200 * GIB, total_inodes=10**7, free_inodes=10**6
        )
        return Facts(
            hostname=f"h{index + 1}",
            machine=f"boot {index}",
            versions=(
                ("tlaunch", "0.1.0"),
                ("python", "3.11.7"),
                ("torch", "2.6.0+cpu"),
                ("numpy", "2.1.0"),
                ("MPI", "Open MPI 5.0.11"),
            ),
            executable="/opt/bin/python",
            table_digest="abc",
            folders=tuple((name, folder) for name in ("cwd", "runs_dir", "temporary", "shared_memory")),
            limits=(Limit("nofile", 1024, 4096), Limit("nproc", None, None), Limit("memlock", 65536, 65536)),
            interfaces=(
                Interface("eth0", (f"10.0.0.{index + 1}",), 1500),
                Interface("lo", ("127.0.0.1", "::1"), 65536),
            ),
            default_interface="eth0",
            resolved=tuple(Resolved(f"h{other + 1}", (f"10.0.0.{other + 1}",), 0.001) for other in range(count)),
            first_ephemeral_port=32768,
            last_ephemeral_port=60999,
            cpu_count=4,
            usable_cpus=4,
            memory_total_bytes=16 * GIB,
            memory_available_bytes=8 * GIB,
        )

    def change(self, server, **changes):
        self.facts[server] = replace(self.facts[server], **changes)

    def change_folder(self, server, purpose, **changes):
        folders = dict(self.facts[server].folders)
        folders[purpose] = replace(folders[purpose], **changes)
        self.change(server, folders=tuple(folders.items()))

    def means(self, server, name, *addresses, seconds=0.001, answered=True):
        kept = tuple(one for one in self.facts[server].resolved if one.name != name)
        self.change(server, resolved=(*kept, Resolved(name, addresses, seconds, answered)))

    def cut(self, server, other, outcome=Outcome.TIMED_OUT):
        self.reach[server] = tuple(
            replace(attempt, outcome=outcome, round_trip_s=None) if attempt.server == other else attempt
            for attempt in self.reach[server]
        )

    def give_devices(self, kind, *ids):
        """To all servers."""
        for server in self.facts:
            self.change(server, **{f"{kind}_devices": ids})

    def findings(self):
        return judge(self.cluster, self.facts, self.reach, self.offsets_s, self.troubles, self.join_failures)

    def said(self):
        """Code, severity and servers of each finding, without the note that nobody has an accelerator."""
        found = [one for one in self.findings() if one.code != "no-accelerator"]
        return [(one.code, one.severity.value, one.servers) for one in found]

    def only(self):
        """The one finding."""
        (found,) = [one for one in self.findings() if one.code != "no-accelerator"]
        return found


@pytest.fixture
def ward():
    return Ward
