"""The supported operators: the dims along which each can be sharded, and its computation on a rank's shards."""
