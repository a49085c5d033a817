"""Training of a custom network with a Transformer on dp * mp * pp ranks: its modules, and one rank's part of it."""
