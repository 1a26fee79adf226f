"""What a client is told of an error, the same for every transport: messages written for clients, else a request id."""

import logging
import secrets

from latebind.domain.errors import Expired, Refused, StepFailed, Unavailable, UserError

log = logging.getLogger(__name__)

# Errors whose message was written for clients; of all others only a request id leaves the house.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable)


def report(error: Exception) -> str:
    """Log what happened under a fresh id and return what the client is told: the id alone."""
    request_id = secrets.token_hex(8)
    log.error("request %s failed", request_id, exc_info=error)
    return f"internal error, request id {request_id}"
