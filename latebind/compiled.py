"""Whether the hot path is compiled here (`setup.py`)."""

from importlib.util import find_spec


def is_compiled() -> bool:
    """Return whether the scheduler is machine code."""
    found = find_spec("latebind.scheduler")
    return found is not None and found.origin is not None and not found.origin.endswith(".py")
