"""One folder per format: read.py makes rows of a document, rules.py finds faults, write.py writes a cluster down."""
