"""Option types, and options and arguments that several commands share."""
