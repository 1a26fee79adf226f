"""Defaults that commands show and builds share, with their reasons."""

MAX_OVERHEAD = 0.04  # of a chain's time over the uncut model's
BOUNDARY_SECONDS = 31e-6  # the engine's time between two stages with nothing queued: `python -m research boundary`
MIN_STAGE_SECONDS = round(BOUNDARY_SECONDS / MAX_OVERHEAD, 4)  # so its boundary is at most that share of it
CANDIDATES = 3  # kinds of predictors that are trained at a boundary, of those whose time may pay
PRESENTATIONS = 300_000  # rows that each predictor sees, repetitions counted
