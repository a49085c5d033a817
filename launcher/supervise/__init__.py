"""The agent, one per server: it starts ranks, watches them, and ends all of them after the first failure.

To change when a rank counts as hanging or slow: progress_monitor.py, slowness.py (use only the monotonic clock).
To change how processes are ended: tree.py, attempt_monitor.py (follow the grace rule in docs/internals/supervision.md).
To change when a failed rank that does not exit is ended: lingering.py (read files only after a failure).
To change which process reads the stdin of the launcher (`--stdin`): spawn.py, launcher/preload/serve.py,
    launcher/engines/local.py (all other ranks read /dev/null).
To change how a slow disk is handled: disk.py, link.py, launcher/cluster/connections.py, launcher/control/disk_stalls.py
    (code that answers pings never accesses a disk).
To change what is ended if launcher and agent are killed together: watcher.py (the watcher survives both, and reads
    events.jsonl).
To change how MindSpore's ranks find each other: scheduler.py, launcher/cli/launch/prepare.py (the scheduler is not a
    rank, and runs until the last rank has ended).
To change what a rank reports to Open MPI: mpi_member.py, mpi_proxy.py (mpirun receives the real exit codes of ranks).
To change the message about a port in use: port.py (read only /proc; mask secrets).
To change which devices an elastic run excludes: exclusions.py (users may edit the file during the run).
"""
