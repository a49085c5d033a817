"""The run controller, which decides what happens next, apart from what makes it happen; the messages between servers."""
