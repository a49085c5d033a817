"""Training of custom networks on several ranks.

The public APIs are `launcher.trainer.api` and `launcher.trainer.shard`.

trace     traces a network's code with torch.fx
divide    splits a batch into the parts that ranks compute
check     checks before the first step that the loss of a batch is the mean of the losses of its parts
trial     calls copies of a network for that check, without dropout
train     trains a network with a Transformer on dp * mp * pp ranks
cut       shards a network's operators by sharding strategies

To change which networks are refused because of their loss: check.py, trial.py, divide.py (the check calls the network;
    tests/trainer/test_own_check.py lists kinds of losses).
"""
