"""The run controller, which decides the next step of a run, and the messages between servers."""
