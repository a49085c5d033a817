"""Read what ranks write to their logs, while they run and afterwards. Nothing in this package writes a log."""
