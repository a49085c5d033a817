"""Sharding strategies of operators: how tensors lie on devices, and what has to be communicated. It computes with shapes alone."""
