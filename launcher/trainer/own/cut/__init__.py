"""Cuts a network by sharding strategies: its operators, who computes which part of each, and what is communicated."""
