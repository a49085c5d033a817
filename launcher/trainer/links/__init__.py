"""The measurement of the connections between ranks, a program of its own."""
