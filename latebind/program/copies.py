"""Whether the workers that run a model share its weights or have a copy each.

A stage of OpenVINO that workers share hands each call to a thread of OpenVINO (`openvino_stage`). With two models in
turn, as in a query, the system often wakes a thread on the core that is taken while the other one rests: of two cores
1.57 were busy. Where each worker has a copy of its own it computes on its own thread, and 1.90 are. Decision 69.
"""

SPARE = 32 << 20  # bytes that a model may take more than with one copy for all
MADE = 2  # how often a stage is compiled: for a batch of one and for any other


def has_copies(weights: int, twins: int) -> bool:
    """Tell whether each worker has a model's `weights` (bytes) for itself, of `twins` workers in all; 0: to share."""
    return twins > 1 and (twins - 1) * MADE * weights <= SPARE
