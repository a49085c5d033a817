"""The agent, one per server: spawn its ranks, watch them, end them all with the first failure, leave nothing behind."""
