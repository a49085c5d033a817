"""The trainer: programs that train on all ranks. Only this package imports torch.

To change how the model is split over ranks: plan.py, parallel/styles.py, parallel/head_loss.py (the file of the model
    is written for a single device).
To change what a step does: session.py, programs/loop.py (every rank calls the same collectives in the same order).
"""
