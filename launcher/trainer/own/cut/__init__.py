"""Shards a network by strategies: traces its operators, and runs each rank's part with the communication it needs.

To change an operator: operators/table.py, operators/record.py (an operator has one output, and communicates only
    statistics; a test shards it in every possible way).
To change how a plan is executed: execution.py, communication.py, sharded_network.py (all ranks open process groups in
    the same order).
To change which mode uses which strategies: modes.py, calibrate.py (all ranks use the same measured costs).
"""
