"""Settings of the bundled programs, and checks that run before a launch and need no torch."""
