"""The formats, one package each: a reader builds rows from a document, rules find faults."""
