"""gRPC through the ingress: a message goes to a replica as the body of an HTTP request, and so does its answer.

Thus one kind of connection carries everything, and lost or cancelled calls are treated the same in both protocols.
"""

import time
from collections.abc import Mapping

import orjson

from latebind.cluster.fleet import Fleet
from latebind.cluster.merging import merged_statistics
from latebind.cluster.upstream import STATUS, Parts
from latebind.domain.errors import InvalidRequest, LatebindError, NotFound, Refused, Unavailable, UserError
from latebind.server.access import Access, Guard
from latebind.server.calls import CLIENT_HEADER
from latebind.server.rest.infer import Context as RestContext
from latebind.server.rest.messages import Reply
from latebind.server.rest.openapi import Route
from latebind.server.rest.protocol import Request
from latebind.server.rpc.infer import STATUSES, TRACEPARENT, Caller, Context, InferStream, parse, read_request
from latebind.server.rpc.messages import INFERENCE, from_json, service_pb2
from latebind.server.rpc.server import CallFailed, Reception
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
    """Return the method of the ingress that has replicas do what this method does."""
    name = method.path.rpartition("/")[2]

    def parts(data: bytes, caller: Caller, path: str = method.path) -> Parts:
        return fleet.request("POST", PATH.encode() + path.encode(), _headers(caller), data)

    async def infer(context: Context, data: bytes, caller: Caller) -> bytes:
        path = f"/{INFERENCE.full_name}/ModelInfer"  # each request of a stream too
        return _message(await fleet.one(model_name(data, context), parts(data, caller, path)))

    async def one(context: Context, data: bytes, caller: Caller) -> bytes:
        return _message(await fleet.one("", parts(data, caller)))

    async def everywhere(context: Context, data: bytes, caller: Caller) -> bytes:
        first, *_ = [_message(reply) for reply in await fleet.all(parts(data, caller))]
        return first

    async def change(context: Context, data: bytes, caller: Caller) -> bytes:
        model = parse(MODEL_CHANGES[name], data).model_name
        first, *_ = [_message(reply) for reply in await fleet.change(model, parts(data, caller))]
        return first

    async def statistics(context: Context, data: bytes, caller: Caller) -> bytes:
        request = parse(service_pb2.ModelStatisticsRequest, data)
        one = f"/{request.name}" if request.name else ""
        version = f"/versions/{request.version}" if request.version else ""
        asked = fleet.request("GET", f"/v2/models{one}{version}/stats".encode(), (), b"")
        found = [orjson.loads(reply.body) for reply in (await fleet.each(asked)).values()]
        if not found:
            raise Unavailable("no replica answers at the moment: try again later")
        failed = next((text["error"] for text in found if "error" in text), None)
        if failed is not None:
            raise NotFound(failed)
        written: bytes = from_json(merged_statistics(found), service_pb2.ModelStatisticsResponse()).SerializeToString()
        return written

    if name == "ModelStreamInfer":
        return Method(
            method.path, method.access, stream=lambda context, caller: InferStream(context, caller, infer, pieces=None)
        )
    if method.answer is None or method.access is Access.OPEN:
        return method  # health: the ingress knows whether there are replicas
    answers = {"ModelInfer": infer, "ModelStatistics": statistics} | dict.fromkeys(MODEL_CHANGES, change)
    return Method(method.path, method.access, answers.get(name) or (everywhere if name in ALL_REPLICAS else one))


def replica_route() -> Route:
    """Return the route on which a replica answers such calls. Only the ingress is let in."""
    found = methods()

    async def verb(context: RestContext, request: Request) -> Reply:
        method = found.get("/" + request.names["METHOD"])
        if method is None or method.answer is None:
            raise NotFound("there is no such method")
        reception = Reception(Context(context.service, context.limits), Guard())
        try:
            data = await request.read()
            request.watch()
            return Reply(await reception.answer(method, method.answer, data, _Relayed(request)))
        except Refused as refused:  # there are too many bodies already
            return _failure(CallFailed(refused))
        except CallFailed as failed:
            return _failure(failed)

    return Route("POST", PATH + "/{METHOD}", Access.MUTATING, verb)


def model_name(data: bytes, context: Context) -> str:
    """Return the model that an infer request is for. Raises `InvalidRequest`."""
    if len(data) > 2 and data[0] == NAME_FIRST and data[1] < 0x80:
        return data[2 : 2 + data[1]].decode("utf-8", "replace")
    name: str = read_request(data, context.limits)[0].model_name
    return name


def _failure(failed: CallFailed) -> Reply:
    return Reply(failed.text.encode(), ((STATUS, failed.status.encode()),))


def _headers(caller: Caller) -> list[tuple[bytes, bytes]]:
    seconds = caller.seconds()
    headers = [(CLIENT_HEADER, caller.address().encode())]
    if seconds is not None:
        headers.append((SECONDS, b"%.6f" % seconds))
    headers += [(name.encode(), value.encode("latin-1")) for name in CARRIED if (value := caller.header(name))]
    return headers


def _message(reply: Reply) -> bytes:
    """Return the message in a replica's reply. Raises the error that the reply stands for."""
    status = dict(reply.headers).get(STATUS)
    if status is not None:
        raise ReplicaError(status.decode(), reply.body.decode("utf-8", "replace"))
    if reply.status != 200:
        raise LatebindError(f"a replica answered {reply.status}")
    return reply.body


class _Relayed:
    """The caller of a call that the ingress has sent on."""

    def __init__(self, request: Request) -> None:
        self._client = request.client
        self._headers: Mapping[bytes, bytes] = request.fields
        self._begun = time.monotonic()
        try:
            self._seconds = float(self._headers[SECONDS]) if SECONDS in self._headers else None
        except ValueError:
            raise InvalidRequest("latebind-seconds is no number") from None

    def seconds(self) -> float | None:
        return None if self._seconds is None else self._seconds - (time.monotonic() - self._begun)

    def address(self) -> str:
        return self._client

    def header(self, name: str) -> str:
        return self._headers.get(name.encode(), b"").decode("latin-1")
