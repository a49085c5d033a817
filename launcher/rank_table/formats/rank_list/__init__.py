"""v2.0 (A5): a flat list of ranks with the layers of their network."""
