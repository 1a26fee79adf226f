"""What the four papers claim, measured: their evaluations, baselines and hardware. Not part of what is installed."""
