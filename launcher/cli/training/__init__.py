"""The bundled trainer on the command line: its command, its settings, its checkpoints and the models that it has trained.

To change which checkpoint `--resume` uses: resume.py (use the newest usable checkpoint; compare settings first).
To change how translations are started: translators.py, launcher/trainer/decode/__main__.py (batching does not change
    the translation of a sentence).
"""
