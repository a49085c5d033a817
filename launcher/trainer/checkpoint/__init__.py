"""Checkpoints that all ranks write and read together.

To change who writes and reads a checkpoint, and when: schedule.py, save.py, writer.py, restore.py (writing threads do
    not call collectives).
"""
