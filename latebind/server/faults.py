"""What a client sees of an error, over any transport: a message written for clients, or only a request id."""

import logging
import re
import secrets

from latebind.domain.errors import Expired, LatebindError, NotFinite, Refused, StepFailed, Unavailable, UserError
from latebind.logs import REQUEST

HARMLESS = re.compile(r"[A-Za-z0-9._:/@+=-]{1,128}", re.ASCII)  # nothing that could forge a line or a label

log = logging.getLogger(__name__)


class Reported(LatebindError):
    """Replaces an error that clients must not see; its message has the id under which it is logged."""


# Errors whose message was written for clients. For all others, clients get only a request id.
FOR_CLIENTS = (UserError, Refused, Expired, StepFailed, Unavailable, NotFinite, Reported)


def for_clients(error: Exception) -> LatebindError:
    """Return the error that the client gets. One that was not written for clients is logged."""
    return error if isinstance(error, FOR_CLIENTS) else Reported(report(error))


def report(error: Exception) -> str:
    """Log an unexpected error and return what the client gets: a request id, its own if that is safe to show."""
    found = request_id(REQUEST.get())  # of the request that this task answers
    log.error("request %s failed", found, exc_info=error, extra={"request": found})
    return f"internal error, request id {found}"


def request_id(given: str = "") -> str:
    """Return the client's id for its request, or a new one if it gave none or one that is not safe to show."""
    return given if HARMLESS.fullmatch(given) else secrets.token_hex(8)
