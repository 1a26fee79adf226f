"""Where the arrays of a state lie: compiled functions get one record of addresses, and look into arrays through these.

With all arrays as arguments of every function, numba takes ten minutes to compile.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import carray, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import (
    BATCH,
    BELIEF,
    CHOICE,
    LANE,
    MACHINE,
    MODEL,
    OFFER,
    QUEUE,
    REQUEST,
    RING,
    SETTINGS,
    TALLY,
    WORKER,
)

State = Any  # a record of `POINTERS`
FLOAT, WHOLE, SHORT, BYTE = np.dtype("f8"), np.dtype("i8"), np.dtype("i2"), np.dtype("u1")

ARRAYS: dict[str, tuple[np.dtype[Any], int]] = {
    "settings": (SETTINGS, 1),  # one record
    "tally": (TALLY, 1),  # one record
    "machines": (MACHINE, 1),
    "workers": (WORKER, 1),
    "lanes": (LANE, 1),  # by machine and model
    "queues": (QUEUE, 1),  # two for each lane: those held, those who may begin
    "requests": (REQUEST, 1),
    "batches": (BATCH, 1),
    "rings": (RING, 1),  # of those whose models go by a window
    "beliefs": (BELIEF, 1),  # of those whose models go by `late`
    "models": (MODEL, 1),  # by kind and model
    "holders": (WHOLE, 1),  # by model
    "seconds": (FLOAT, 3),  # of a stage, by profile, stage and batch
    "rest": (FLOAT, 3),  # from before a stage to the end
    "soon": (FLOAT, 3),  # until somebody may leave
    "best": (FLOAT, 3),  # answers a second
    "answered": (FLOAT, 2),  # the same from the start to the end, by profile and batch
    "chance_seconds": (FLOAT, 3),  # by profile, batch and place where somebody may leave
    "chance_shares": (FLOAT, 3),
    "ends": (WHOLE, 1),  # how many such places there are
    "alive": (FLOAT, 2),  # the share of requests that runs a stage, by profile and stage
    "lookups": (BYTE, 2),  # whether one stands behind a stage, likewise
    "event_times": (FLOAT, 1),
    "event_orders": (WHOLE, 1),
    "event_slots": (WHOLE, 1),
    "event_places": (WHOLE, 1),
    "up": (WHOLE, 1),
    "is_up": (BYTE, 1),
    "unanswered": (WHOLE, 1),
    "work": (WHOLE, 1),
    "home_starts": (WHOLE, 1),
    "homes": (WHOLE, 1),
    "busy": (FLOAT, 1),
    "times": (FLOAT, 1),
    "wanted": (np.dtype("i4"), 1),
    "leaves": (SHORT, 1),
    "ended": (FLOAT, 1),
    "outcomes": (np.dtype("i1"), 1),
    "taken": (np.dtype("i4"), 1),
    "some": (WHOLE, 1),  # lanes, to choose victims from
    "marks": (BYTE, 1),
    "choices": (CHOICE, 1),
    "offers": (OFFER, 1),  # to choose victims from where models go in parts
}
POINTERS = np.dtype([(f"{name}{part}", "i8") for name in ARRAYS for part in ("", "_0", "_1", "_2")])


def addresses(arrays: dict[str, NDArray[Any]]) -> NDArray[np.void]:
    """Return a record array of one with where each of `ARRAYS` lies, and its shape."""
    pointers = np.zeros(1, POINTERS)
    for name, (dtype, dims) in ARRAYS.items():
        array = arrays[name]
        assert (array.dtype, array.ndim) == (dtype, dims), f"{name} is laid out otherwise"
        assert array.flags.c_contiguous, f"{name} has gaps"
        pointers[name] = array.ctypes.data
        for part, length in enumerate(array.shape):
            pointers[f"{name}_{part}"] = length
    return pointers


@intrinsic  # type: ignore[untyped-decorator]
def _pointer(_context: Any, address: Any) -> Any:
    """Make a pointer of an address."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def _view(name: str) -> Callable[[State], Any]:
    dtype, dims = ARRAYS[name]
    rows, columns, depth = (f"{name}_{part}" for part in range(3))

    def one(s: State) -> Any:
        return carray(_pointer(s[name]), (s[rows],), dtype)

    def two(s: State) -> Any:
        return carray(_pointer(s[name]), (s[rows], s[columns]), dtype)

    def three(s: State) -> Any:
        return carray(_pointer(s[name]), (s[rows], s[columns], s[depth]), dtype)

    return compiled((one, two, three)[dims - 1])


settings, tally, machines, workers = _view("settings"), _view("tally"), _view("machines"), _view("workers")
lanes, queues, requests, batches = _view("lanes"), _view("queues"), _view("requests"), _view("batches")
rings, models, holders, seconds = _view("rings"), _view("models"), _view("holders"), _view("seconds")
rest, soon, best, answered = _view("rest"), _view("soon"), _view("best"), _view("answered")
chance_seconds, chance_shares, ends = _view("chance_seconds"), _view("chance_shares"), _view("ends")
alive, event_times, event_orders = _view("alive"), _view("event_times"), _view("event_orders")
event_slots, event_places, up, is_up = _view("event_slots"), _view("event_places"), _view("up"), _view("is_up")
unanswered, work, home_starts, homes = _view("unanswered"), _view("work"), _view("home_starts"), _view("homes")
busy, times, wanted, leaves = _view("busy"), _view("times"), _view("wanted"), _view("leaves")
ended, outcomes, taken, some = _view("ended"), _view("outcomes"), _view("taken"), _view("some")
marks, choices, beliefs, offers = _view("marks"), _view("choices"), _view("beliefs"), _view("offers")
lookups = _view("lookups")


@compiled
def model_at(s: State, machine: int, model: int) -> int:
    """Return the place in `models` of the model with this number, on machines of this kind."""
    return int(machines(s)[machine].kind * settings(s)[0].models + model)


@compiled
def model_of(s: State, machine: int, lane: int) -> int:
    """Return the place in `models` of a lane's model."""
    return int(model_at(s, machine, lane - machine * settings(s)[0].models))
