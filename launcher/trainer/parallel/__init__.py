"""Process groups, collectives, model parallelism and the pipeline.

To change how collectives transfer data: collectives.py, world.py, shared_memory.py (add new messages about lost ranks
    to launcher/supervise/diagnosis/error_patterns.py).
"""
