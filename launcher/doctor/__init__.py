"""The doctor: collect facts of every server, test the connections between servers, and report problems for a run."""
