"""The memory layout of a cluster's state: arrays of records that refer to each other by index, where 0 means none.

A record of zeros is a valid new record, so memory for machines and models that are never used is never touched.
Requests and batches are referred to by their place in the pool. Lanes, models and machines are referred to by their
number plus 1, in fields that say so. Times are in seconds since the start of the run, sizes in bytes, and fields of
type u1 are truth values unless said otherwise. A lane is one model on one machine.
"""

from typing import Any

import numpy as np

from latebind.residency.rates import GAPS, KEPT

REQUEST = np.dtype(
    [
        ("number", "i8"),  # in the order of arrival at the cluster
        ("deadline", "f8"),
        ("arrived", "f8"),  # time at its machine
        ("due", "f8"),  # time by which the client wants the answer
        ("delayed", "f8"),
        ("slack", "f8"),  # at admission, as a share of the time allowed
        ("next", "i8"),  # request of its lane in the order of arrival, and the previous one
        ("previous", "i8"),
        ("later", "i8"),  # request of its lane or batch in the order of deadlines, and the one before
        ("sooner", "i8"),
        ("model", "i8"),
        ("leaves", "i8"),  # the stage after which it leaves
    ],
    align=True,
)
LANE = np.dtype(  # one model on one machine
    [
        ("first", "i8"),  # waiting request that came first, and last
        ("newest", "i8"),
        ("soonest", "i8"),  # waiting request with the first deadline, and the last
        ("latest", "i8"),
        ("count", "i8"),  # of waiting requests
        ("begun", "i8"),  # number of started batches
        ("next_waiting", "i8"),  # list of the lanes of the machine with waiting requests
        ("previous_waiting", "i8"),
        ("next_touched", "i8"),
        ("next_here", "i8"),  # list of the lanes of the machine whose models are in memory, at least in part
        ("previous_here", "i8"),
        ("next_holder", "i8"),  # list of the lanes of the model, on all machines, where it is wholly in memory
        ("previous_holder", "i8"),
        ("ring", "i8"),  # place of its ring (IAM) or belief (late)
        ("open", "u1"),  # its waiting requests may start; else they are held for their model
        ("here", "u1"),  # the model is wholly in memory
        ("loading", "u1"),
        ("kept", "u1"),
        ("touched", "u1"),
        ("heard", "u1"),
        ("tried", "u1"),  # a trial of the router is unanswered
        ("wished", "u1"),  # requests were refused because the model was not in memory
        ("guard", "i8"),  # one more than the number of the last request that came before the model was loaded
        ("tick", "i8"),  # number of its last request on the machine
        ("last", "f8"),  # time of its last request
        ("learned", "f8"),  # seconds that its pieces take to load, as loads have shown; 0: as the footprint says
        ("worth", "f8"),
        ("place", "i8"),
        ("next_wish", "i8"),
        ("came", "f8"),  # time when the model was loaded
        ("part", "i8"),  # bytes in memory, if not all are
        ("stays", "i8"),  # bytes that stay in memory if it is evicted
        ("going", "u1"),
    ],
    align=True,
)
QUEUE = np.dtype([("arrivals", "f8"), ("last", "f8"), ("gap", "f8"), ("seen", "i8")], align=True)
MACHINE = np.dtype(
    [
        ("budget", "i8"),
        ("used", "i8"),
        ("waiting", "i8"),  # number of waiting requests
        ("ready", "i8"),  # number of those that may start
        ("newest", "i8"),  # one more than the greatest number of a request that came
        ("tick", "i8"),
        ("backlog", "f8"),  # seconds of work of the requests that may start
        ("wake", "f8"),  # time of the alarm
        ("load_seconds", "f8"),  # of the load under way
        ("ends", "f8"),  # time at which that load is expected to end
        ("every_last", "f8"),  # time of the last request for any model, and the mean gap
        ("every_gap", "f8"),
        ("since", "f8"),  # time of the first request
        ("slack", "f8"),  # sum over the requests since the last tick, and their number
        ("slacks", "i8"),
        ("kind", "i8"),
        ("workers", "i8"),
        ("begun", "i8"),  # number of started batches
        ("target", "i8"),  # lane that is being loaded or is to be loaded, plus 1
        ("waiting_lanes", "i8"),
        ("touched", "i8"),
        ("here", "i8"),
        ("wishes", "i8"),  # the first and the last of the lanes whose models are wished for
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
        ("moved", "i8"),  # batch that goes on without a decision: no lookup follows the stage that it ran last
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
        ("rests", "i8"),  # whether another batch went first
        ("ran", "i8"),  # number of requests in its last run
        ("preempted", "f8"),
    ],
    align=True,
)
MODEL = np.dtype(  # on machines of one kind
    [
        ("profile", "i8"),
        ("stages", "i8"),
        ("most", "i8"),  # requests in a batch
        ("worth", "i8"),  # requests in a batch; larger batches are no quicker for each
        ("max_queued", "i8"),
        ("name", "i8"),  # place of its name in the order of all names
        ("pieces", "i8"),
        ("allowed", "f8"),
        ("each", "f8"),  # seconds of work for each request
        ("least", "f8"),  # seconds that a request takes alone until it may leave
        ("seconds", "f8"),  # that its pieces take to load, without the fixed seconds of a load
        ("fixed", "f8"),
        ("bytes", "i8"),
        ("grain", "i8"),  # bytes; any multiple of it may stay in memory; 0: all or nothing
        ("router_each", "i8"),  # nanoseconds, as are the next two: see `simulation/cluster/tables.py`
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
        ("slots", "i8"),  # places for events of each machine
        ("graph", "u1"),  # the batching policy is `graph`; else `late`
        ("exits", "u1"),
        ("sheds", "u1"),
        ("whole", "u1"),  # evicts whole models, as the cheapest set
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
OFFER = np.dtype(  # a group of bytes of a model in memory that may be evicted
    [
        ("worth", "f8"),  # of one byte
        ("lane", "i8"),
        ("stays", "i8"),  # bytes of the model that stay if the group is evicted
        ("core", "u1"),  # it is the first bytes of the model, which save the fixed part of a load
        ("goes", "u1"),  # 0, `PART` or `WHOLLY`
    ],
    align=True,
)
TALLY = np.dtype(
    [
        ("next", "i8"),  # number of the next request to come
        ("trials", "i8"),
        ("loads", "i8"),
        ("loaded", "f8"),
        ("ended", "i8"),  # requests that ended since the last tick, and those of them late or without an answer
        ("late", "i8"),
        ("free_request", "i8"),
        ("free_batch", "i8"),
        ("spare_requests", "i8"),
        ("spare_batches", "i8"),
        ("rings", "i8"),  # number of rings or beliefs in use
        ("last", "i8"),  # machine that the router chose last; -1: none
        ("up", "i8"),  # number of machines that are up
        ("due", "i8"),  # number of scheduled events
        ("order", "i8"),  # number of the last scheduled event; breaks ties
    ],
    align=True,
)


def whole(value: int) -> Any:
    """Return an integer of the type that fields have; with a plain literal numba would compile functions twice."""
    return np.int64(value)


LATE, IAM, LRU = range(3)
ANSWERED, REFUSED_FULL, REFUSED_LATE, EXPIRED = map(whole, range(4))
REFUSED_LOADING = whole(7)
NOTHING = whole(0)
PART, WHOLLY = 1, 2  # how much of a group or a model is evicted
