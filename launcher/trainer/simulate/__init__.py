"""Runs a training step of the bundled Transformer on a device that does not exist, for any rank of any layout.

The trainer's own code runs; torch computes only shapes. Memory, FLOPs and collectives of a rank are counted on the way.

To change which torch features this uses: torch_internals.py (the only module with private names of torch).
To change what a simulated device can do: devices.py.
To change how memory is divided into kinds: memory.py, launcher/trainer/optimizer/sharded.py (`held`).
"""
