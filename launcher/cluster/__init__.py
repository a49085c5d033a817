"""Runs on several servers: the coordinator, and the agents that connect to it."""
