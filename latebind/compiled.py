"""Whether what each launch and each call goes through was compiled ahead of time here (`setup.py`)."""

from importlib.util import find_spec


def is_compiled() -> bool:
    """Tell whether the scheduler is machine code."""
    found = find_spec("latebind.scheduler")
    return found is not None and found.origin is not None and not found.origin.endswith(".py")
