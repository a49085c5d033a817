"""Options and arguments of commands: their types, and those that several commands share."""
