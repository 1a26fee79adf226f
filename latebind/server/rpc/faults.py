"""What a gRPC client is told of an error: a status and a message."""

from latebind.domain.errors import LatebindError
from latebind.server.faults import FOR_CLIENTS, report

MOST_CHARACTERS = 1000  # the message is sent as a header, whose size clients limit


def status_and_message(error: Exception) -> tuple[str, str]:
    """Return the name of the status and the message; errors not meant for clients are logged instead."""
    status = error.grpc_status if isinstance(error, LatebindError) else LatebindError.grpc_status
    text = str(error) if isinstance(error, FOR_CLIENTS) else report(error)
    return status, text[:MOST_CHARACTERS]
