"""Sharding of a network by strategies: its operators, the part that each rank computes, and the communication.

To change an operator: operators/table.py, operators/record.py (one output; no communication except statistics; a test
    cuts it in every way).
To change how a plan is executed: execution.py, communication.py, sharded_network.py (all ranks open groups in the
    same order).
To change which mode uses which strategies: modes.py, calibrate.py (all ranks use the same measured costs).
"""
