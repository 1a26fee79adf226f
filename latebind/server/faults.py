"""What a client is told of an error, over any transport: a message written for clients, or else only a request id."""

import logging

from latebind.domain.errors import Expired, Refused, StepFailed, Unavailable, UserError
from latebind.logs import REQUEST
from latebind.server.identity import request_id

log = logging.getLogger(__name__)

# Errors whose message was written for clients. Of all others, clients are told only a request id.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable)


def report(error: Exception) -> str:
    """Log an unexpected error and return what the client is told: a request id, its own if that is safe to show."""
    found = request_id(REQUEST.get())
    log.error("request %s failed", found, exc_info=error, extra={"request": found})
    return f"internal error, request id {found}"
