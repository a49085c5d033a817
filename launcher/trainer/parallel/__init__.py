"""Process groups, collectives, model parallelism and the pipeline."""
