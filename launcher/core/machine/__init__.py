"""Looks at this machine: its processes, owners of files, network interfaces, and the engine around a process."""
