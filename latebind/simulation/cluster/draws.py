"""Random draws for each request that depend on the seed and the number of the request only, not on earlier draws.

So requests can be simulated in any order with the same result. The generator is splitmix64 (Steele, Lea and Flood,
OOPSLA 2014), in uint64 arithmetic that wraps around.
"""

import numpy as np
from numpy.typing import NDArray

GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
UNIT = 2.0**-53

Words = NDArray[np.uint64]


def mixed(words: Words) -> Words:
    """Return each word with its bits mixed by the last step (the finaliser) of splitmix64."""
    words = (words ^ (words >> np.uint64(30))) * FIRST
    words = (words ^ (words >> np.uint64(27))) * SECOND
    return words ^ (words >> np.uint64(31))


def drawn(seed: int, numbers: NDArray[np.int64], salt: int = 0) -> Words:
    """Return 64 random bits for each number `(N,)`: `mixed(start + (number + 1) * GAMMA)`, all modulo 2**64.

    `start` is `mixed(mixed(seed) + salt)`. A different salt gives independent draws for the same numbers.
    """
    start = mixed(mixed(_word(seed)) + _word(salt))
    words = numbers.astype(np.uint64) + np.uint64(1)
    return mixed(start + words * GAMMA)


def shares(words: Words) -> NDArray[np.float64]:
    """Return a float in [0, 1) for each word, made of its upper 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * UNIT


def _word(value: int) -> Words:
    return np.array([value & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
