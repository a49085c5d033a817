"""A run over several servers: its coordinator, and how the agents of all servers take part."""
