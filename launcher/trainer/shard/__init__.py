"""The public API for sharding a custom network's operators over ranks.

To change what scripts call to cut a network: api.py, modules.py (public: examples/strategies.py and
    docs/strategies.md show it).
"""
