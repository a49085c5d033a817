"""`tlaunch render`."""
