"""tlaunch: start distributed Transformer training from a rank table."""

__version__ = "0.1.0"
