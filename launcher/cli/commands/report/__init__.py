"""`tlaunch report`: what became of runs, as text, as one page with charts, or as a picture of it."""
