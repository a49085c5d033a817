"""A cluster in which nothing is wrong, for tests to change one thing in it."""

from dataclasses import replace

import pytest

from launcher.core.records import Cluster, Device, Server
from launcher.doctor.facts import Facts, Folder, Interface, Limit, Resolved
from launcher.doctor.finding import Evidence
from launcher.doctor.reach import Attempt, Outcome
from launcher.doctor.rules import judge

GIB = 1 << 30
WELL = Folder("/somewhere", total_bytes=500 * GIB, free_bytes=200 * GIB, total_inodes=10**7, free_inodes=10**6)
VERSIONS = {
    "tlaunch": "0.2.0", "python": "3.11.7", "torch": "2.6.0+cpu", "numpy": "2.1.0", "MPI": "Open MPI 5.0.11"
}  # fmt: skip


class Evidences:
    """`count` servers h1, h2, ... without accelerators, and what the rules find."""

    def __init__(self, count, ranks=2):
        self.count = count
        self.cluster = Cluster(
            tuple(
                Server(f"h{index + 1}", tuple(Device(local, index * ranks + local) for local in range(ranks)))
                for index in range(count)
            )
        )
        self.facts = {index: self._facts(index) for index in range(count)}
        self.reach = {
            index: tuple(Attempt(other, f"h{other + 1}", Outcome.REACHED, f"10.0.0.{other + 1}", 0.0002, got_large=other != index)
                         for other in (*range(index), *range(index + 1, count), index))
            for index in range(count)
        }  # fmt: skip
        self.offsets_s = dict.fromkeys(range(count), 0.001)
        self.troubles = {}
        self.join_failures = {}

    def _facts(self, index):
        return Facts(
            hostname=f"h{index + 1}",
            machine=f"boot {index}",
            versions=tuple(VERSIONS.items()),
            executable="/opt/bin/python",
            table_digest="abc",
            folders=tuple((name, WELL) for name in ("cwd", "runs_dir", "temporary", "shared_memory")),
            limits=(Limit("nofile", 1024, 4096), Limit("nproc", None, None), Limit("memlock", 65536, 65536)),
            interfaces=(
                Interface("eth0", (f"10.0.0.{index + 1}",), 1500),
                Interface("lo", ("127.0.0.1", "::1"), 65536),
            ),
            default_interface="eth0",
            resolved=tuple(Resolved(f"h{other + 1}", (f"10.0.0.{other + 1}",), 0.001) for other in range(self.count)),
            first_ephemeral_port=32768,
            last_ephemeral_port=60999,
            cpu_count=4,
            usable_cpus=4,
            memory_total_bytes=16 * GIB,
            memory_available_bytes=8 * GIB,
        )

    def change(self, *servers, **changes):
        for server in servers:
            self.facts[server] = replace(self.facts[server], **changes)

    def change_all(self, **changes):
        self.change(*self.facts, **changes)

    def change_folder(self, server, purpose, **changes):
        folders = dict(self.facts[server].folders)
        folders[purpose] = replace(folders[purpose], **changes)
        self.change(server, folders=tuple(folders.items()))

    def add_interface(self, server, interface, **changes):
        self.change(server, interfaces=(*self.facts[server].interfaces, interface), **changes)

    def resolve(self, server, name, *addresses, seconds=0.001, answered=True):
        kept = tuple(one for one in self.facts[server].resolved if one.name != name)
        self.change(server, resolved=(*kept, Resolved(name, addresses, seconds, answered)))

    def call_itself(self, server, name, *addresses, **changes):
        self.change(server, hostname=name, **changes)
        self.resolve(server, name, *addresses)

    def cut(self, *ways, outcome=Outcome.TIMED_OUT):
        """Let connections from the first to the second server of each way have this outcome."""
        for server, other in ways:
            self.reach[server] = tuple(
                replace(attempt, outcome=outcome, round_trip_s=None) if attempt.server == other else attempt
                for attempt in self.reach[server]
            )

    def lose_large(self, *ways):
        """Lose large packets: one end sees that nothing arrives there, the other that nothing comes back."""
        self.cut(*ways, outcome=Outcome.LOSES_THERE)
        self.cut(*(way[::-1] for way in ways if way[::-1] not in ways), outcome=Outcome.LOSES_BACK)

    def only_from(self, *servers, failure):
        """Let only these servers have answered; the others have failed to join."""
        self.facts = {index: self.facts[index] for index in servers}
        self.reach, self.offsets_s = {}, dict.fromkeys(servers, 100.0)
        self.join_failures = {index: failure for index in range(self.count) if index not in servers}

    def findings(self):
        """Return all findings but the note that there is no accelerator."""
        evidence = Evidence(self.cluster, self.facts, self.reach, self.offsets_s, self.troubles, self.join_failures)
        return [one for one in judge(evidence) if one.code != "no-accelerator"]


@pytest.fixture
def make_cluster():
    return Evidences
