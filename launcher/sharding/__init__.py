"""Sharding strategies of operators: the layouts of tensors on devices, and the communication they need. Uses only shapes."""
