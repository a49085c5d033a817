"""The program that measures the connections between ranks."""
