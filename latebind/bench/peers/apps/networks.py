"""What the peers compute: float32 rows in, float32 rows out."""

from collections.abc import Callable
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.float32]]


def load(name: str) -> Callable[[Rows], Rows]:
    """Return the model of this name."""
    if name == "identity":
        return _identity
    raise ValueError(f"there is no model {name!r}")


def _identity(rows: Rows) -> Rows:
    return rows
