"""The one tree of errors. A message says what happened, to what, and what to do next.

Each error knows its status over HTTP (`http_status`) and over gRPC (`grpc_status`, the name of the code); a class
without its own has that of its base.
"""


class LatebindError(Exception):
    """Root of all errors that latebind raises on purpose."""

    http_status, grpc_status = 500, "INTERNAL"


class UserError(LatebindError):
    """Something that the caller can fix."""

    http_status, grpc_status = 400, "INVALID_ARGUMENT"


class InvalidRequest(UserError):
    """A request that no model could answer: wrong tensor, wrong shape, broken body."""


class NotFound(UserError):
    """No such model, version or route."""

    http_status, grpc_status = 404, "NOT_FOUND"


class Denied(UserError):
    """A call without a token, or with one that may not do this."""

    http_status, grpc_status = 401, "UNAUTHENTICATED"


class TurnedOff(UserError):
    """A call of something that the operator has not turned on. The message names the option."""

    http_status, grpc_status = 403, "PERMISSION_DENIED"


class Exists(UserError):
    """Something of this name is there already."""

    http_status, grpc_status = 409, "ALREADY_EXISTS"


class TooLarge(UserError):
    """Something exceeds its limit of size."""

    http_status, grpc_status = 413, "RESOURCE_EXHAUSTED"


class Unsupported(UserError):
    """A part of the protocol that latebind does not serve."""

    http_status, grpc_status = 501, "UNIMPLEMENTED"


class ExportError(UserError):
    """A module that cannot be turned into a chain of stages."""


class ConfigError(UserError):
    """A setting or option that makes no sense."""


class DoesNotFit(ConfigError):
    """A `model` that needs more memory than the settings leave for models."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model


class QueryError(ConfigError):
    """A query file that makes no sense. The message says where, and what to write instead."""


class WrongQuery(QueryError):
    """An error in the query of this name, one of several that are read together."""

    def __init__(self, message: str, query: str) -> None:
        super().__init__(message)
        self.query = query


class RepositoryError(UserError):
    """A model directory that is incomplete, altered or of another format."""


class Refused(LatebindError):
    """A request that was not accepted: the queue is full or its deadline cannot be met."""

    http_status, grpc_status = 503, "RESOURCE_EXHAUSTED"


class Expired(LatebindError):
    """A request whose deadline passed while it waited or ran, or could no longer be met."""

    http_status, grpc_status = 504, "DEADLINE_EXCEEDED"


class Failed(LatebindError):
    """A request whose model raised while it ran."""


class StepFailed(Failed):
    """A query of which a step raised. The message names the step and reveals no internals of the server."""


class Unavailable(LatebindError):
    """The engine is starting, draining or gone."""

    http_status, grpc_status = 503, "UNAVAILABLE"


class Loading(Unavailable):
    """A request whose model is being loaded, in some `seconds`, which is longer than the request may take."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class NotFinite(LatebindError):
    """An answer with NaN or infinity, which the requested form does not have."""


class IllegalEvent(LatebindError):
    """An event that the state does not allow. It is a bug; the state is unchanged."""
