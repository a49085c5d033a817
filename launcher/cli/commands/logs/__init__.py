"""`tlaunch logs`."""
