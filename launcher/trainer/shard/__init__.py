"""A network whose operators are cut over ranks: traced, planned by `launcher.sharding`, and executed.

To change what scripts call to cut a network: api.py, modules.py (public: examples/strategies.py and
    docs/strategies.md show it).
"""
