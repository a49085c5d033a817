"""The formats, one package each: read.py builds rows from a document, rules.py finds faults."""
