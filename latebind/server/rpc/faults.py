"""What a gRPC client is told of an error: a status and a message."""

from latebind.server.faults import for_clients

MOST_CHARACTERS = 1000  # the message is sent as a header, whose size clients limit


def status_and_message(error: Exception) -> tuple[str, str]:
    """Return the name of the status and the message; errors not meant for clients are logged instead."""
    told = for_clients(error)
    return told.grpc_status, str(told)[:MOST_CHARACTERS]
