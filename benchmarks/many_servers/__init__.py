"""What a run over many servers costs. `make bench` runs benchmarks/servers.py."""
