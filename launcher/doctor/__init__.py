"""What every server reports, which servers reach each other, and what of that would break a run."""
