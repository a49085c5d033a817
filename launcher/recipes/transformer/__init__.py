"""The recipe of the encoder-decoder Transformer: settings, packaged configurations, checks.

To change the estimated memory of a rank: memory.py (it follows the optimizer's plan in
    launcher/trainer/optimizer/flat.py).
"""
