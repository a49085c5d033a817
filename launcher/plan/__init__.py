"""The planner: predicts the step time and peak memory of a Transformer's training, and searches for layouts.

Pure arithmetic on shapes and measured numbers, standard library only. No process starts, and no device is needed.

To change what a layer costs: model_shape.py, stage_time.py (times), peak_memory.py (bytes).
To change what a message costs: collective_time.py (groups and servers), pipeline.py (messages between stages).
To change the numbers of a device: device_profile.py, packaged_profiles.py (every value has a source).
To change how numbers are fitted to measured runs: measured_rows.py, fit.py, least_squares.py, nearby.py.
To change which layouts are tried, and what is said about them: search.py, explanation.py.
"""
