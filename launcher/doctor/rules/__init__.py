"""Each rule looks at all servers and tells of one kind of cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.doctor.finding import Evidence, Finding
from launcher.doctor.rules import files, machine, names, network, reach, software

Rule = Callable[[Evidence], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    reach.absent,
    reach.no_answer,
    reach.unreachable,
    names.unknown_names,
    names.loopback,
    names.own_names,
    names.differing_names,
    names.slow_names,
    names.foreign_address,
    network.missing_interfaces,
    network.mtu_differs,
    network.ports_taken,
    network.ports_given_away,
    network.one_machine,
    software.clock_skew,
    software.versions,
    software.interpreters,
    software.users,
    software.table_missing,
    software.table_differs,
    files.cwd_missing,
    files.not_writable,
    files.little_space,
    files.few_inodes,
    files.small_shared_memory,
    machine.few_files,
    machine.few_processes,
    machine.locked_memory,
    machine.little_memory,
    machine.few_cpus,
    machine.devices,
)
