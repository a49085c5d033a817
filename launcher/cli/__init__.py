"""The command line. No other package prints to stdout or stderr."""
