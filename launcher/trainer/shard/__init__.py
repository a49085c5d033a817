"""The public API that shards a custom network's operators over ranks.

To change the functions that scripts call to shard a network: api.py, modules.py (these functions are public:
    examples/strategies.py and docs/strategies.md use them).
"""
