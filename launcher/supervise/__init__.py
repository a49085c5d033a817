"""The agent, one per server: it starts ranks, watches them, and ends all of them after the first failure.

To change when a rank counts as hanging or slow: progress_monitor.py, slowness.py (monotonic clock only, no waiting).
To change how processes are ended: tree.py, attempt_monitor.py (one grace rule; docs/internals/supervision.md).
To change when a failed rank that does not exit is ended: lingering.py (reads files only after a failure).
To change how a slow disk is handled: disk.py, link.py, launcher/cluster/connections.py,
    launcher/control/disk_stalls.py (code that answers pings never touches a disk).
To change what is ended if launcher and agent are killed together: watcher.py (it outlives both, and reads
    events.jsonl).
To change how MindSpore's ranks meet: scheduler.py, launcher/cli/launch/prepare.py (the scheduler is not a rank, and
    lives until the last rank has ended).
To change what a rank reports to Open MPI: mpi_member.py, mpi_proxy.py (mpirun sees the real exit codes).
To change the message about a port in use: port.py (reads only /proc; secrets are masked).
To change which devices an elastic run excludes: exclusions.py (a person may edit the file during the run).
"""
