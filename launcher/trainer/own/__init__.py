"""Checks of a user's network before training divides its batches."""
