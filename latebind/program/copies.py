"""How many copies of its weights a model has for the workers that run it: one for all, or one for each.

A stage of OpenVINO that workers share hands each call to a thread of OpenVINO (`openvino_stage`). With two models in
turn, as in a query, the system often wakes a thread on the core that is taken while the other one rests: of two cores
1.57 were busy. Where each worker has a copy of its own it computes on its own thread, and 1.90 are. Decision 69.
"""

from enum import Enum

SPARE = 32 << 20  # bytes that a model may take more than with one copy for all
MADE = 2  # how often a stage is compiled: for a batch of one and for any other
PER_OPERATOR = 512 << 10  # bytes of weights for each operator from which on it does not matter that the batch is free


class Copies(Enum):
    """Whose weights are.

    SHARED: those of a large stage are there once for each size it is compiled for, and all workers use them.
    PAIR: each of two workers has a large stage compiled once, for any batch, which takes as much memory as SHARED.
    OWN: each worker has its own, for each size.
    """

    SHARED = "shared"
    PAIR = "pair"
    OWN = "own"


def copies_for(weights: int, twins: int) -> Copies:
    """Return whose a model's `weights` (bytes) are, of which there are so many `twins` in all; 0: they are to share."""
    if twins < 2:
        return Copies.SHARED
    if (twins - 1) * MADE * weights <= SPARE:
        return Copies.OWN
    return Copies.PAIR if twins == MADE else Copies.SHARED


def is_dense(weights: int, operators: int) -> bool:
    """Tell whether a graph with so many bytes of weights spends so long on each operator that a free batch is free.

    That costs 3 us an operator, and 17 where the last batch had another size; reading 512 KiB takes 50.
    """
    return weights >= PER_OPERATOR * operators
