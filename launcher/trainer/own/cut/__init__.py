"""Sharding of a network by strategies: its operators, the part that each rank computes, and the communication.

To change an operator: operators/table.py, operators/record.py (an operator has one output, and communicates only
    statistics; a test shards it in every possible way).
To change how a plan is executed: execution.py, communication.py, sharded_network.py (all ranks open process groups in
    the same order).
To change which mode uses which strategies: modes.py, calibrate.py (all ranks use the same measured costs).
"""
