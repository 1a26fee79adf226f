"""Whether the workers that run a model share its weights or have a copy each.

An OpenVINO stage that workers share hands each call to a thread of OpenVINO (`openvino_stage`). With two models in
turn, as in a query, the system often wakes a thread on a busy core while the other core is idle: of two cores 1.57 were
busy. If each worker has a copy of its own, it computes on its own thread, and 1.90 are busy. Steps of a
decoder are so short that handing them over takes longer than they do, so copies of them may take more.
"""

SPARE = 32 << 20  # bytes that the further copies of a model may take
MADE = 2  # a stage is compiled twice: for a batch of one and for any other
SPARE_FOR_DECODERS = 512 << 20  # bytes that the further copies of a sequence model may take


def has_copies(weights: int, twins: int) -> bool:
    """Return whether each of `twins` workers gets its own copy of a model's `weights` (bytes).

    With 0 twins they share.
    """
    return twins > 1 and (twins - 1) * MADE * weights <= SPARE


def has_copies_of_decoder(step: int, reading: int, twins: int) -> tuple[bool, bool]:
    """Return whether each of `twins` workers gets its own copy of a decoder's step, and of what reads before it.

    `step` and `reading` are the bytes of all weights that one worker compiles for each, once for each batch size.
    """
    further = twins - 1
    spare = SPARE_FOR_DECODERS - further * step
    return further > 0 and spare >= 0, further > 0 and spare >= further * reading
