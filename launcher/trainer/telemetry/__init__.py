"""Writes a training's telemetry: heartbeats, metrics.jsonl, TensorBoard files, profiles and recorded operators.

To change what a training measures: metrics_writer.py, step_time.py, event_file.py (keys: see launcher/core/metrics.py).
"""
