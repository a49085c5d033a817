"""Process groups, collectives, model parallelism and the pipeline.

To change what carries a collective: collectives.py, world.py, shared_memory.py (a new message about a lost rank goes
    into launcher/supervise/diagnosis/error_patterns.py).
"""
