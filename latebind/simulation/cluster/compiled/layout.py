"""The memory layout of a cluster's state: arrays of records that refer to each other by index, where 0 means none.

A record of zeros is a valid new record, so memory for machines and models that are never used is never touched.
Requests and batches are referred to by their place in the pool. Lanes, models and machines are referred to by their
number plus 1, in fields that say so.
"""

from typing import Any

import numpy as np

from latebind.residency.rates import GAPS, KEPT

REQUEST = np.dtype(
    [
        ("number", "i8"),
        ("deadline", "f8"),
        ("arrived", "f8"),  # at its machine
        ("due", "f8"),  # when the client wants it
        ("delayed", "f8"),
        ("slack", "f8"),  # at admission, a share of the time allowed
        ("next", "i8"),  # in the order of arrival
        ("previous", "i8"),
        ("later", "i8"),  # in the order of deadlines
        ("sooner", "i8"),
        ("model", "i8"),
        ("leaves", "i8"),
    ],
    align=True,
)
LANE = np.dtype(  # one model on one machine
    [
        ("first", "i8"),  # who came first, and last
        ("newest", "i8"),
        ("soonest", "i8"),  # whose deadline comes first, and last
        ("latest", "i8"),
        ("count", "i8"),
        ("begun", "i8"),  # batches
        ("next_waiting", "i8"),  # lanes of the machine where somebody waits
        ("previous_waiting", "i8"),
        ("next_touched", "i8"),
        ("next_here", "i8"),  # lanes of the machine of whose models anything is in memory
        ("previous_here", "i8"),
        ("next_holder", "i8"),  # lanes of the model, on all machines, where it is in memory
        ("previous_holder", "i8"),
        ("ring", "i8"),  # or belief
        ("open", "u1"),
        ("here", "u1"),  # all of it
        ("loading", "u1"),
        ("kept", "u1"),
        ("touched", "u1"),
        ("heard", "u1"),
        ("tried", "u1"),  # a trial is unanswered
        ("wished", "u1"),  # requests were refused for want of it
        ("guard", "i8"),  # one more than the last number that came before it was loaded
        ("tick", "i8"),
        ("last", "f8"),  # request
        ("learned", "f8"),  # seconds of its pieces, where loads have shown that they take others
        ("worth", "f8"),
        ("place", "i8"),
        ("next_wish", "i8"),
        ("came", "f8"),  # to memory
        ("part", "i8"),  # bytes that are in memory, where not all are
        ("stays", "i8"),  # of these, when it goes
        ("going", "u1"),
    ],
    align=True,
)
QUEUE = np.dtype([("arrivals", "f8"), ("last", "f8"), ("gap", "f8"), ("seen", "i8")], align=True)
MACHINE = np.dtype(
    [
        ("budget", "i8"),
        ("used", "i8"),
        ("waiting", "i8"),  # requests
        ("ready", "i8"),  # those of them who may begin
        ("newest", "i8"),  # one more than the greatest number that came
        ("tick", "i8"),
        ("backlog", "f8"),
        ("wake", "f8"),
        ("load_seconds", "f8"),  # of what is on its way
        ("ends", "f8"),  # when that is expected
        ("every_last", "f8"),  # request for any model, and the mean gap
        ("every_gap", "f8"),
        ("since", "f8"),  # the first request
        ("slack", "f8"),  # sum since the last tick
        ("slacks", "i8"),
        ("kind", "i8"),
        ("workers", "i8"),
        ("begun", "i8"),  # batches
        ("target", "i8"),  # lane that is being loaded, or is to be
        ("waiting_lanes", "i8"),
        ("touched", "i8"),
        ("here", "i8"),
        ("wishes", "i8"),  # lanes whose models requests were refused for want of, the first and the last
        ("last_wish", "i8"),
        ("loads", "u1"),
        ("drains", "u1"),
        ("undecided", "u1"),
        ("heard", "u1"),
    ],
    align=True,
)
WORKER = np.dtype(
    [
        ("running", "i8"),
        ("bottom", "i8"),
        ("top", "i8"),
        ("count", "i8"),
        ("early", "i8"),
        ("moved", "i8"),  # who has gone on, of whom nobody could leave
    ],
    align=True,
)
BATCH = np.dtype(
    [
        ("soonest", "i8"),
        ("latest", "i8"),
        ("count", "i8"),
        ("stage", "i8"),
        ("model", "i8"),
        ("above", "i8"),
        ("below", "i8"),
        ("rests", "i8"),  # whether another was let past
        ("ran", "i8"),  # how many ran together last
        ("preempted", "f8"),
    ],
    align=True,
)
MODEL = np.dtype(  # on machines of one kind
    [
        ("profile", "i8"),
        ("stages", "i8"),
        ("most", "i8"),  # in a batch
        ("worth", "i8"),  # in a batch: more are no quicker
        ("max_queued", "i8"),
        ("name", "i8"),  # its place in the order of names
        ("pieces", "i8"),
        ("allowed", "f8"),
        ("each", "f8"),  # seconds of work that a request is
        ("least", "f8"),  # seconds of a request alone until it may leave
        ("seconds", "f8"),  # that its pieces take to load
        ("fixed", "f8"),
        ("bytes", "i8"),
        ("grain", "i8"),  # any multiple of which may stay; 0: all or nothing
        ("router_each", "i8"),  # nanoseconds
        ("router_alone", "i8"),
        ("router_load", "i8"),
        ("room", "i8"),
    ],
    align=True,
)
SETTINGS = np.dtype(
    [
        ("hop", "f8"),
        ("patience", "f8"),
        ("window", "f8"),
        ("requests", "i8"),
        ("models", "i8"),
        ("slots", "i8"),  # of events, for each machine
        ("graph", "u1"),  # else late
        ("exits", "u1"),
        ("sheds", "u1"),
        ("whole", "u1"),  # sets of models go, not one after another
        ("eviction", "u1"),
        ("foresight", "u1"),
        ("oldest", "u1"),
        ("router", "u1"),
        ("placed", "u1"),
    ],
    align=True,
)
RING = np.dtype([("times", "f8", (KEPT,)), ("first", "i8"), ("count", "i8")], align=True)
BELIEF = np.dtype([("shares", "f8", (len(GAPS),)), ("habit", "f8", (len(GAPS),)), ("count", "i8")], align=True)
CHOICE = np.dtype(
    [
        ("rate", "f8"),
        ("seconds", "f8"),
        ("alone", "f8"),
        ("due", "f8"),
        ("first", "i8"),
        ("count", "i8"),
        ("lane", "i8"),
        ("batch", "i8"),
    ],
    align=True,
)
OFFER = np.dtype(  # of a model in memory, a lot that may go
    [
        ("worth", "f8"),  # of a byte
        ("lane", "i8"),
        ("stays", "i8"),  # bytes, if it goes
        ("core", "u1"),  # the first bytes, which save the fixed part of a load
        ("goes", "u1"),
    ],
    align=True,
)
TALLY = np.dtype(
    [
        ("next", "i8"),  # request that comes
        ("trials", "i8"),
        ("loads", "i8"),
        ("loaded", "f8"),
        ("ended", "i8"),  # since the last tick, and those of them too late or without an answer
        ("late", "i8"),
        ("free_request", "i8"),
        ("free_batch", "i8"),
        ("spare_requests", "i8"),
        ("spare_batches", "i8"),
        ("rings", "i8"),  # or beliefs, that are taken
        ("last", "i8"),  # machine that the router has chosen, -1: none
        ("up", "i8"),  # machines
        ("due", "i8"),  # events
        ("order", "i8"),  # of events
    ],
    align=True,
)


def whole(value: int) -> Any:
    """Return an integer of the type that fields have. With a plain literal, numba would compile functions once more."""
    return np.int64(value)


LATE, IAM, LRU = range(3)
ANSWERED, REFUSED_FULL, REFUSED_LATE, EXPIRED = map(whole, range(4))
REFUSED_LOADING = whole(7)
NOTHING = whole(0)
PART, WHOLLY = 1, 2  # of a model that goes
