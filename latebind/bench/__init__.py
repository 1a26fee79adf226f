"""Benchmarks: one module for each published figure or claim. Each prints what it measured, with seed and settings."""
