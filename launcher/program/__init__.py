"""Find out whether a rank's command is Python and what it will import. Reads files, executes nothing."""
