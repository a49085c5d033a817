"""The planner: predicts the step time and peak memory of a Transformer's training, and searches for layouts.

Pure arithmetic on shapes and measured numbers, standard library only. No process starts, and no device is needed.

To change what a layer or a message costs: model_shape.py, stage_time.py, collective_time.py, pipeline.py (bounds in
    pipeline.py must stay below every simulated time).
To change what memory a layout needs: peak_memory.py (compare with measured peaks of published runs).
To change the numbers of a device: device_profile.py, packaged_profiles.py (every value has a source or says that it is
    assumed; every number that is fitted has a width).
To change how numbers are fitted to measured runs: measured_rows.py, fit.py, least_squares.py, nearby.py (one mechanism for
    any number of rows; report the error of rows that were left out).
To change the layouts that are tried, and their reasons: search.py, explanation.py (equal numbers give equal answers on every
    call).
"""
