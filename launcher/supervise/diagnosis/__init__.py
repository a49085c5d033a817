"""The diagnosis of a failed attempt: evidence of every rank, merged over servers, and the verdict on it."""
