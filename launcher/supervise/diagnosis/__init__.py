"""Diagnoses a failed attempt: collects evidence of every rank, merges it over servers, and derives a verdict."""
