"""One module for each published figure or promise; every one prints what it measured, with seed and settings."""
