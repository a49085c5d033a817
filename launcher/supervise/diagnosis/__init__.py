"""What an attempt failed of: evidence of every rank, merged over servers, and the verdict on it."""
