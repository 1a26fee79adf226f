"""What a client is told of an error, the same for every transport: messages written for clients, else a request id."""

import logging

from latebind.domain.errors import Expired, Refused, StepFailed, Unavailable, UserError
from latebind.logs import REQUEST
from latebind.server.identity import request_id

log = logging.getLogger(__name__)

# Errors whose message was written for clients; of all others only a request id leaves the house.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable)


def report(error: Exception) -> str:
    """Log what happened and return what the client is told: an id alone, its own where that is harmless."""
    found = request_id(REQUEST.get())
    log.error("request %s failed", found, exc_info=error, extra={"request": found})
    return f"internal error, request id {found}"
