"""What a client is told of an error, over any transport: a message written for clients, or else only a request id."""

import logging

from latebind.domain.errors import Expired, LatebindError, Refused, StepFailed, Unavailable, UserError
from latebind.logs import REQUEST
from latebind.server.identity import request_id

log = logging.getLogger(__name__)


class Reported(LatebindError):
    """Stands for an error that clients must not see; its message has the id under which the log tells it."""


# Errors whose message was written for clients. Of all others, clients are told only a request id.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable, Reported)


def for_clients(error: Exception, request: str | None = None) -> LatebindError:
    """Return the error that the client is told. One that was not written for clients is reported.

    `request` is the client's id of its request; None: the id of the request that this task answers.
    """
    return error if isinstance(error, FOR_CLIENTS) else Reported(report(error, request))


def report(error: Exception, request: str | None = None) -> str:
    """Log an unexpected error and return what the client is told: a request id, its own if that is safe to show."""
    found = request_id(REQUEST.get() if request is None else request)
    log.error("request %s failed", found, exc_info=error, extra={"request": found})
    return f"internal error, request id {found}"
