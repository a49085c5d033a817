"""`tlaunch top`."""
