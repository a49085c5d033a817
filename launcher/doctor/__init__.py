"""What every server says of itself, whom it reaches, and what of that would break a run."""
