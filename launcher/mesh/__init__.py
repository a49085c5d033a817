"""The mesh of ranks: coordinates, groups, stages. Pure arithmetic, standard library only.

To change which layers a pipeline stage holds: stages.py, launcher/recipes/transformer/cost.py (use only integers from
    settings, so that all ranks compute the same stages).
To change the order of micro batches: schedules.py, launcher/trainer/parallel/pipeline.py (all stages run backward
    passes in the same order, because messages have no tags).
"""
