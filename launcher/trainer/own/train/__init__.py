"""Training of a custom network with a Transformer on dp * mp * pp ranks: its modules, and one rank's part of it.

To change how a network around a Transformer is split: pipeline_parts.py, parameter_plan.py, rank_part.py
    (tests/programs/api_ranks.py has a row for each way of dividing the work).
To change MindSpore's layers: layers.py, parallel_modules.py, configs.py (launcher/trainer/api/__init__.py lists the
    public names).
"""
