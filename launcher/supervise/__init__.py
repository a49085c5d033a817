"""The agent, one per server: it starts ranks, watches them, and ends all of them after the first failure."""
