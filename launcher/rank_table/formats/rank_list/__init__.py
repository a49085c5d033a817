"""Format v2.0 (A5): a flat list of ranks, each with its layers of the network."""
