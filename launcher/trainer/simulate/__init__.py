"""Runs a training step of the bundled Transformer on a device that does not exist, for any rank of any layout.

The trainer's own code runs on tensors without values. Memory, FLOPs and collectives of the rank are counted meanwhile.

To change which features of torch a simulated step uses: torch_internals.py (only this module has private names of torch,
    and it names those that are missing).
To change how a simulated device computes: devices.py (nothing is computed: only shapes, sizes and operators count).
To change how memory is divided into kinds: memory.py, launcher/trainer/optimizer/sharded.py (every tensor has one kind,
    and the kinds add up to the peak).
To change how a step reads a value from a device: observer.py, launcher/trainer/parallel/collectives.py (another read is an error
    in a simulated step).
"""
