"""Writes a training's telemetry: heartbeats, metrics.jsonl, TensorBoard files, profiles and recorded operators."""
