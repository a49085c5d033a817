"""The run controller: what happens next in a run, decided apart from all that it takes to make it happen."""
