"""Checkpoint files of a training: format, integrity checks and conversions. The trainer reads and writes tensors.

To change the content of a checkpoint: index.py, file_layout.py, launcher/trainer/checkpoint/state.py (boxes of the
    single-device model, readable by every layout; raise `SCHEMA` for incompatible changes).
To change which settings must be equal to resume: same_settings.py (a setting that older checkpoints lack has a
    default).
To change what replaces a damaged file: tensors.py (digests are verified first).
To change how checkpoints are merged or compared: model_merge.py, average.py, difference.py (memory of one block; the
    output directory is complete or absent).
To change a format to convert to or from: mindspore.py, mindspore_export.py, dcp.py,
    launcher/trainer/checkpoint/foreign/ (no pickle is loaded; one tensor in memory).
"""
