"""Sharding strategies of operators: the layouts of tensors on devices, and the communication they need. Uses only shapes.

To change how a strategy is written and checked: strategy.py, launcher/recipes/strategies.py (messages contain the
    numbers; recipes reject strategies before a process starts).
To change what a plan communicates: plan.py, redistribution.py (computed from shapes only; backward is forward in
    reverse).
To change how missing strategies are chosen: propagation.py, search.py, elimination.py, cost.py (deterministic: only
    the graph and shared costs matter).
To change a strategy report: strategy_report.py, plan.py, launcher/trainer/telemetry/recording.py (every collective is
    reported to the active recorder).
"""
