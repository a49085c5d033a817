"""The doctor: facts of every server, which servers reach each other, and what of that would break a run."""
