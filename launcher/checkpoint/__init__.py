"""Checkpoint files of a training: format, integrity checks and conversions. The trainer reads and writes tensors.

To change the content of a checkpoint: index.py, file_layout.py, launcher/trainer/checkpoint/state.py (store boxes of
    the single-device model, so that every layout can read them; raise `SCHEMA` for incompatible changes).
To change which settings must be equal to resume, or to start from a model: same_settings.py, initial_model.py,
    launcher/trainer/checkpoint/initial.py (a setting that older checkpoints do not contain needs a default).
To change which files replace a damaged file: tensors.py (verify digests before using a file).
To change how checkpoints are merged or compared: model_merge.py, average.py, difference.py (hold only one block in
    memory; the output directory is either complete or absent).
To change a format to convert to or from: mindspore.py, mindspore_export.py, dcp.py,
    launcher/trainer/checkpoint/foreign/ (do not unpickle; hold one tensor in memory).
"""
