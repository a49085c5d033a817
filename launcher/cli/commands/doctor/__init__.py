"""`tlaunch doctor`."""
