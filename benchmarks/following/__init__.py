"""The measurements of `logs.py`, one module each: what following logs costs, and how soon a line is seen."""
