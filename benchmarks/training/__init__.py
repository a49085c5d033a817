"""The measurements of train.py."""
