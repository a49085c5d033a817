"""One module per family of formats: from a cluster that the format can express to its canonical text.

Fixed order of keys, one line per device, a newline at the end: equal clusters give equal bytes on every node. What a
format cannot express is decided before, in `launcher.rank_table.targets`.
"""
