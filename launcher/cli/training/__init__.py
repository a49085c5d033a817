"""Use of the bundled trainer by commands: its command line, settings, checkpoints and trained models.

To change which checkpoint `--resume` uses: resume.py (use the newest usable checkpoint; compare settings first).
To change how translations are started: translators.py, launcher/trainer/decode/__main__.py (batching does not change
    the translation of a sentence).
"""
