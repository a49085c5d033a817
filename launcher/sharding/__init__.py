"""Sharding strategies of operators: the layouts of tensors on devices, and the communication they need. Uses only shapes.

To change how a strategy is written and checked: strategy.py, launcher/recipes/strategies.py (error messages contain the
    numbers; recipes reject strategies before any process starts).
To change what a plan communicates: plan.py, redistribution.py (compute it from shapes only; backward communication is
    the reverse of forward communication).
To change how missing strategies are chosen: propagation.py, search.py, elimination.py, cost.py (the choice depends only
    on the graph and the shared costs, so that all ranks agree).
To change a strategy report: strategy_report.py, plan.py, launcher/trainer/telemetry/recording.py (report every
    collective to the active recorder).
"""
