"""`tlaunch report`: what became of runs, as text, or as one page with charts."""
