"""Sentence pairs: from WMT files, plain text or the built-in sample, to the files a trainer reads."""
