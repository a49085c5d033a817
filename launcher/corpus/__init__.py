"""Prepare sentence pairs (from WMT files, plain text or the built-in sample) in the files that a trainer reads."""
