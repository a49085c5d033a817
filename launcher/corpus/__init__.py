"""Sentence pairs: from WMT files or plain text, or drawn from a grammar, to the files a trainer reads."""
