"""Sharding of a network by strategies: its operators, the part that each rank computes, and the communication."""
