"""What a training tells while it runs: heartbeats, metrics.jsonl, TensorBoard."""
