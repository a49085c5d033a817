"""The sharded optimizer: its state is partitioned over the data-parallel ranks.

To change how the optimizer state is divided: flat.py, sharded.py, gradients.py, gradient_shards.py (all data-parallel
    ranks use the same plan, and call collectives in the same order).
To change a weight that two pipeline stages share: shared_weight.py, launcher/trainer/plan.py (one stage owns the
    weight; checkpoints and norms include it once).
"""
