"""`tlaunch report`."""
