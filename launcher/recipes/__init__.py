"""What the bundled programs can be told, and the checks that need no torch: the launcher refuses before it starts."""
