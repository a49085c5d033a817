"""The operators that a network may be made of: how each is cut, and how a rank computes it on its parts."""
