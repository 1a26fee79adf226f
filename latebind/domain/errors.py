"""The one tree of errors. A message says what happened, to what, and what to do next.

Each error knows its status over HTTP (`http_status`) and over gRPC (`grpc_status`, the name of the code).

LatebindError
|- UserError               the caller can mend it
|  |- InvalidRequest       400  a request that no model could answer
|  |- NotFound             404  no such model, version or route
|  |- Denied               401  no token, or one that may not do this
|  |- TurnedOff            403  something that the operator has not turned on
|  |- Exists               409  something of this name is there already
|  |- TooLarge             413  a body, header or name past its limit
|  |- ExportError               a module that cannot become a chain of stages
|  |- ConfigError               a setting or option that makes no sense
|  |  `- QueryError             a query file that makes no sense
|  |- RepositoryError           a model directory that is incomplete, altered or of another format
|  |- Unsupported           501  a part of the protocol that is not served
|- Refused                 503  not accepted: the queue is full or the deadline cannot be met
|- Expired                 504  waited or ran, but its deadline passed, or cannot be kept any more
|- Failed                  500  the model raised while it ran
|  `- StepFailed           500  a step of a query, which the message names
|- Unavailable             503  the engine is starting, draining or gone
|  `- Loading            503  its model is being brought into memory, which takes longer than the request may
`- IllegalEvent                 an event that the state does not allow: a bug, the state is unchanged
"""


class LatebindError(Exception):
    """Root of all errors that latebind raises on purpose."""

    http_status = 500
    grpc_status = "INTERNAL"


class UserError(LatebindError):
    """Something that the caller can mend."""

    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class InvalidRequest(UserError):
    """A request that no model could answer: wrong tensor, wrong shape, broken body."""


class NotFound(UserError):
    """No such model, version or route."""

    http_status = 404
    grpc_status = "NOT_FOUND"


class Denied(UserError):
    """A call without a token, or with one that may not do this."""

    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class TurnedOff(UserError):
    """A call of something that the operator has not turned on. The message names the option."""

    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class Exists(UserError):
    """Something of this name is there already."""

    http_status = 409
    grpc_status = "ALREADY_EXISTS"


class TooLarge(UserError):
    """Something is past its limit of size."""

    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class Unsupported(UserError):
    """A part of the protocol that latebind does not serve."""

    http_status = 501
    grpc_status = "UNIMPLEMENTED"


class ExportError(UserError):
    """A module that cannot be turned into a chain of stages."""


class ConfigError(UserError):
    """A setting or option that makes no sense."""


class QueryError(ConfigError):
    """A query file that makes no sense. The message says where, and what to write instead."""


class RepositoryError(UserError):
    """A model directory that is incomplete, altered or of another format."""


class Refused(LatebindError):
    """A request that was not accepted: the queue is full or its deadline cannot be met."""

    http_status = 503
    grpc_status = "RESOURCE_EXHAUSTED"


class Expired(LatebindError):
    """A request whose deadline passed while it waited or ran, or could not be kept any more."""

    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class Failed(LatebindError):
    """A request whose model raised while it ran."""


class StepFailed(Failed):
    """A query of which a step raised. The message names the step and tells nothing of the inside of the server."""


class Unavailable(LatebindError):
    """The engine is starting, draining or gone."""

    http_status = 503
    grpc_status = "UNAVAILABLE"


class Loading(Unavailable):
    """A request whose model is being loaded, in some `seconds`, which is longer than the request may take."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class IllegalEvent(LatebindError):
    """An event that the state does not allow. It is a bug; the state is unchanged."""
