"""The rules that several formats share, by topic."""
