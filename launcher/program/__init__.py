"""What a rank's command is: whether it is Python, and what it will import. Reads files, executes nothing."""
