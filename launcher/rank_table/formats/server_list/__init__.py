"""Formats v1.0 and v1.2: servers with their devices; v1.2 adds super pods."""
