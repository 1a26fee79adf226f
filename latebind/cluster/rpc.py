"""gRPC through the ingress: a message goes to a replica as the body of an HTTP request, and so does its answer.

Thus one kind of connection carries everything, and lost or cancelled calls are treated the same in both protocols.
"""

import time
from collections.abc import Mapping

import orjson

from latebind.cluster.fleet import Fleet
from latebind.cluster.upstream import STATUS, Parts
from latebind.domain.errors import InvalidRequest, LatebindError, NotFound, UserError
from latebind.server.access import Access
from latebind.server.rest.infer import Context as RestContext
from latebind.server.rest.messages import Reply
from latebind.server.rest.openapi import Route
from latebind.server.rest.protocol import Request
from latebind.server.rpc.infer import (
    STATUSES,
    TRACEPARENT,
    Caller,
    Context,
    InferStream,
    parse,
    read_request,
    status_and_message,
)
from latebind.server.rpc.messages import INFERENCE, from_json, service_pb2
from latebind.server.rpc.verbs import Method, methods

PATH = "/rpc"
SECONDS = b"latebind-seconds"
CARRIED = (TRACEPARENT, STATUSES)  # the metadata that verbs read
MODEL_CHANGES = {
    "RepositoryModelLoad": service_pb2.RepositoryModelLoadRequest,
    "RepositoryModelUnload": service_pb2.RepositoryModelUnloadRequest,
}
ALL_REPLICAS = frozenset(
    {"TraceSetting", "LogSettings"}
    | {f"{kind}SharedMemory{verb}" for kind in ("System", "Cuda") for verb in ("Register", "Unregister")}
)
NAME_FIRST = 0x0A  # the first byte of a request whose first field is `model_name`


class ReplicaError(UserError):
    """An error that a replica answered: its status and its message."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.grpc_status = status


def relayed_methods(fleet: Fleet) -> dict[str, Method]:
    """Return the methods of the ingress by path, whose verbs ask replicas."""
    return {path: _relayed(fleet, method) for path, method in methods().items()}


def _relayed(fleet: Fleet, method: Method) -> Method:
    """Return the method of the ingress that passes this method on to replicas."""
    name = method.path.rpartition("/")[2]

    async def infer(context: Context, data: bytes, caller: Caller) -> bytes:
        path = f"/{INFERENCE.full_name}/ModelInfer"  # each request of a stream too
        return _message(await fleet.one(model_name(data, context), _parts(fleet, path, data, caller)))

    async def answer(context: Context, data: bytes, caller: Caller) -> bytes:
        parts = _parts(fleet, method.path, data, caller)
        if name in MODEL_CHANGES:
            return _message(await fleet.change(parse(MODEL_CHANGES[name], data).model_name, parts))
        return _message(await (fleet.all(parts) if name in ALL_REPLICAS else fleet.one("", parts)))

    async def statistics(context: Context, data: bytes, caller: Caller) -> bytes:
        request = parse(service_pb2.ModelStatisticsRequest, data)
        one = f"/{request.name}" if request.name else ""
        version = f"/versions/{request.version}" if request.version else ""
        reply = await fleet.statistics(fleet.request("GET", f"/v2/models{one}{version}/stats".encode(), (), b""))
        body = orjson.loads(reply.body)
        if reply.status != 200:
            raise NotFound(body["error"])
        written: bytes = from_json(body, service_pb2.ModelStatisticsResponse()).SerializeToString()
        return written

    if name == "ModelStreamInfer":
        return Method(
            method.path, method.access, stream=lambda context, caller: InferStream(context, caller, infer, pieces=None)
        )
    if method.answer is None or method.access is Access.OPEN:
        return method  # health: the ingress knows whether there are replicas
    answers = {"ModelInfer": infer, "ModelStatistics": statistics}
    return Method(method.path, method.access, answers.get(name, answer))


def _parts(fleet: Fleet, path: str, data: bytes, caller: Caller) -> Parts:
    """Return a message as a request to a replica, with the caller's metadata that its verb reads."""
    seconds = caller.seconds()
    headers = [] if seconds is None else [(SECONDS, b"%.6f" % seconds)]
    headers += [(name.encode(), value.encode("latin-1")) for name in CARRIED if (value := caller.header(name))]
    return fleet.request("POST", PATH.encode() + path.encode(), headers, data)


def _message(reply: Reply) -> bytes:
    """Return the message in a replica's reply. Raises the error that the reply stands for."""
    status = dict(reply.headers).get(STATUS)
    if status is not None:
        raise ReplicaError(status.decode(), reply.body.decode("utf-8", "replace"))
    if reply.status != 200:
        raise LatebindError(f"a replica answered {reply.status}")
    return reply.body


def model_name(data: bytes, context: Context) -> str:
    """Return the model that an infer request is for. Raises `InvalidRequest`."""
    if len(data) > 2 and data[0] == NAME_FIRST and data[1] < 0x80:
        return data[2 : 2 + data[1]].decode("utf-8", "replace")
    name: str = read_request(data, context.limits)[0].model_name
    return name


def replica_route() -> Route:
    """Return the route on which a replica answers such calls. Only the ingress may call it."""
    found = methods()

    async def verb(context: RestContext, request: Request) -> Reply:
        method = found.get("/" + request.names["METHOD"])
        if method is None or method.answer is None:
            raise NotFound("there is no such method")
        try:
            data = await request.read()
            request.watch()
            return Reply(await method.answer(Context(context.service, context.limits), data, _Relayed(request)))
        except LatebindError as error:
            status, text = status_and_message(error)
            return Reply(text.encode(), ((STATUS, status.encode()),))

    return Route("POST", PATH + "/{METHOD}", Access.MUTATING, verb)


class _Relayed(Caller):
    """The caller of a call that the ingress has sent on."""

    def __init__(self, request: Request) -> None:
        super().__init__(None)
        self._fields: Mapping[bytes, bytes] = request.fields
        self._begun = time.monotonic()
        try:
            self._seconds = float(self._fields[SECONDS]) if SECONDS in self._fields else None
        except ValueError:
            raise InvalidRequest("latebind-seconds is not a number") from None

    def seconds(self) -> float | None:
        return None if self._seconds is None else self._seconds - (time.monotonic() - self._begun)

    def header(self, name: str) -> str:
        return self._fields.get(name.encode(), b"").decode("latin-1")
