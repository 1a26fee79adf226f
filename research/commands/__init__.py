"""The commands of `python -m research`, one module for each evaluation."""
