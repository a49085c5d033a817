"""Settings of the bundled programs, and the checks that need no torch: the launcher refuses before it starts."""
