"""How models share memory: one module for each measurement."""
