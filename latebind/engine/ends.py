"""How the engine reports the end of requests, steps and tokens, as unpacked at the door (`messages` has the bytes)."""

import msgspec

from latebind.domain.actions import Outcome


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A request has ended. If the outcome is ANSWERED, its outputs are in its slot.

    `stage` is the stage at which it left, of a query the step that it had reached. `waited` and `ran` are the seconds
    that it spent in the queue and with a worker.
    """

    request: int
    outcome: Outcome
    stage: int
    waited: float
    ran: float


class Stepped(msgspec.Struct, frozen=True, gc=False):
    """A step of a query has ended: step `node`, run by the model of index `option`, which it left at `stage`.

    `budget` and `spent` are the seconds that it was planned to take and that it took.
    """

    request: int
    node: int
    option: int
    outcome: Outcome
    stage: int
    budget: float
    spent: float


class Wrote(msgspec.Struct, frozen=True, gc=False):
    """The first `tokens` tokens of the answer to a request are in its slot; the last one is reported by its end."""

    request: int
    tokens: int
