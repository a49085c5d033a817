"""Rules that apply to several formats, by topic."""
