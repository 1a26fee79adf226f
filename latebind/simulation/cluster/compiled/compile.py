"""How functions are compiled: by numba, once for each machine, kept beside the sources. Not for anything but numbers.

Numba looks at a function's own file alone to tell whether what it keeps is stale, and not at those that it calls. So
what was kept goes where any of these files has changed.
"""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])
HERE = Path(__file__).parent
KEPT = HERE / "__pycache__"
COMPILED = (
    *(
        "advance",
        "batches",
        "choose",
        "compile",
        "going",
        "heap",
        "layout",
        "lazy",
        "machine",
        "memory",
        "profiles",
        "parts",
    ),
    *("present", "queues", "replies", "routing", "views", "worth"),
)
FROZEN = tuple(
    [HERE.parents[2] / "residency" / f"{name}.py" for name in ("late", "rates")]
)  # constants taken from them


def compiled(function: Function) -> Function:
    """Have a function compiled into those that call it. Floats divide as in numpy, and nothing is reordered."""
    bare = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(Function, numba.njit(error_model="numpy", **bare)(function))


def entry(function: Function) -> Function:
    """Have a function compiled when it is first called from outside, and keep what comes of it."""
    return cast(Function, numba.njit(cache=True, error_model="numpy")(function))


def forget_stale() -> None:
    """Delete what was compiled of other sources than these; a folder that cannot be written keeps nothing anyway."""
    digest = sha256()
    for file in (*(HERE / f"{name}.py" for name in COMPILED), *FROZEN):
        digest.update(file.read_bytes())
    stamp, now = KEPT / "compiled.sha256", digest.hexdigest()
    try:
        if stamp.exists() and stamp.read_text() == now:
            return
        for index in KEPT.glob("*.nb[ic]"):
            index.unlink(missing_ok=True)
        KEPT.mkdir(exist_ok=True)
        stamp.write_text(now)
    except OSError:
        return
