"""Read what ranks wrote to their logs, while they write and afterwards. Nothing here writes a log."""
