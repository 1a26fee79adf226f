"""latebind: a prediction server for PyTorch models that decides late."""

__version__ = "0.1.0"
