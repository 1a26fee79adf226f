"""What the engine says to the door of requests and steps that have ended, as the door has it (`messages` reads it)."""

import msgspec

from latebind.domain.actions import Outcome


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The engine's word that a request has ended; its outputs lie in its slot if the outcome is ANSWERED."""

    request: int
    outcome: Outcome
    stage: int
    waited: float
    ran: float


class Stepped(msgspec.Struct, frozen=True, gc=False):
    """The engine's word that a step of a query has ended: `node`, with the model that is its `option`, at `stage`.

    `budget` and `spent` are the seconds that it was planned to take and took.
    """

    request: int
    node: int
    option: int
    outcome: Outcome
    stage: int
    budget: float
    spent: float
