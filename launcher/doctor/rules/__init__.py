"""Each rule looks at all servers and tells of one kind of cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.doctor.finding import Evidence, Finding
from launcher.doctor.rules import delivery, files, machine, names, network, reach, software

Rule = Callable[[Evidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    reach.absent,
    reach.no_answer,
    reach.unreachable,
    delivery.not_itself,
    delivery.large_packets,
    names.unknown_names,
    names.loopback,
    names.own_names,
    names.differing_names,
    names.slow_names,
    names.foreign_address,
    network.missing_interfaces,
    network.unfit_interfaces,
    network.mtu_differs,
    network.ports_taken,
    network.ports_given_away,
    network.one_machine,
    software.clock_skew,
    software.versions,
    software.other_mpi,
    software.mpi_by_name,
    software.interpreters,
    software.users,
    software.table_missing,
    software.table_differs,
    files.cwd_missing,
    files.not_writable,
    files.little_space,
    files.few_inodes,
    files.full_shared_memory,
    files.small_shared_memory,
    files.shared_memory_closed,
    machine.few_files,
    machine.few_processes,
    machine.locked_memory,
    machine.small_files,
    machine.little_memory,
    machine.few_cpus,
    machine.devices,
)
