"""Measure the cost of a run over many servers. `make bench` runs benchmarks/servers.py."""
