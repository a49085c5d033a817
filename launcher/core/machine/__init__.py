"""Inspects this machine: processes, file owners, network interfaces, and the engine that started a process."""
