"""What several benchmarks need. `make bench` runs the scripts above, nothing in here."""
