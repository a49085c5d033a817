"""A user's own network on several ranks. `launcher.trainer.api` and `launcher.trainer.shard` are its fronts.

trace     reads a network's code by torch.fx
divide    divides a batch into the parts that ranks compute
check     compares the loss of a batch with that of its parts before the first step, by calls of copies (trial)
train     a network around a Transformer, on dp * mp * pp ranks
cut       a network whose operators are cut by sharding strategies

To change which networks are refused because of their loss: check.py, trial.py, divide.py (calls the network;
    tests/trainer/test_own_check.py lists kinds of losses).
"""
