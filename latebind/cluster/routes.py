"""HTTP at the ingress: which routes one replica answers, which all replicas, and which the ingress itself."""

from collections.abc import Mapping
from typing import Any

import orjson

from latebind.cluster.merging import labelled, merged_statistics, own_figures
from latebind.cluster.relay import Relay
from latebind.domain.errors import Unavailable
from latebind.server.rest import about
from latebind.server.rest.about import TEXT, health_reply
from latebind.server.rest.app import ROUTES, Route, Verb
from latebind.server.rest.infer import Context, infer
from latebind.server.rest.request import Reply, Request, json_reply

ALL_REPLICAS: frozenset[Any] = frozenset(
    (
        *(about.update_trace_settings, about.update_log_settings),
        *(about.register, about.unregister),
    )
)


def relayed(relay: Relay) -> tuple[Route, ...]:
    """Return the routes of the ingress, whose verbs ask replicas."""
    ways = _ways(relay)
    return tuple((path, method, access, ways.get(verb) or _one(relay)) for path, method, access, verb in ROUTES)


def _ways(relay: Relay) -> Mapping[Any, Verb]:
    """Return the verbs that not just any single replica can answer."""
    return {
        infer: _infer(relay),
        about.live: about.live,
        about.ready: _ready(relay),
        about.statistics: _statistics(relay),
        about.traces: _traces(relay),
        about.metrics: _metrics(relay),
        **dict.fromkeys(ALL_REPLICAS, _all(relay)),
        **dict.fromkeys((about.load, about.unload), _wish(relay)),
    }


def _one(relay: Relay) -> Verb:
    """Have one replica answer. Making a call twice is harmless: it computes the same result again."""

    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            request.watch()
            return await relay.one(request.names.get("model") or "", parts)

    return verb


def _infer(relay: Relay) -> Verb:
    async def verb(context: Context, request: Request) -> Reply:
        relay.fleet.require_room()  # before its body is read
        async with relay.read(request, context.held) as parts:
            request.watch()
            return await relay.one(request.model, parts)

    return verb


def _all(relay: Relay) -> Verb:
    """Have all replicas do something; the reply is the first failure, if there is one."""

    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            replies = await relay.all(parts)
        return next((reply for reply in replies if reply.status != 200), replies[0])

    return verb


def _wish(relay: Relay) -> Verb:
    """Have all replicas load or unload a model, including those that start later."""

    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            replies = await relay.wish(request.model, parts)
        return next((reply for reply in replies if reply.status != 200), replies[0])

    return verb


def _ready(relay: Relay) -> Verb:
    async def verb(context: Context, request: Request) -> Reply:
        if not context.service.ready():
            return health_reply("ready", False)
        return await _one(relay)(context, request)

    return verb


def _statistics(relay: Relay) -> Verb:
    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            replies = (await relay.each(parts)).values()
        if not replies:
            raise Unavailable("no replica answers at the moment: try again later")
        failed = next((reply for reply in replies if reply.status != 200), None)
        return failed or json_reply(merged_statistics([orjson.loads(reply.body) for reply in replies]))

    return verb


def _traces(relay: Relay) -> Verb:
    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            replies = await relay.each(parts)
        traces = [
            {**trace, "replica": name}
            for name, reply in replies.items()
            if reply.status == 200
            for trace in orjson.loads(reply.body)["traces"]
        ]
        return json_reply({"traces": traces})

    return verb


def _metrics(relay: Relay) -> Verb:
    async def verb(context: Context, request: Request) -> Reply:
        async with relay.read(request, context.held) as parts:
            replies = await relay.each(parts)
        texts = {name: reply.body.decode() for name, reply in replies.items() if reply.status == 200}
        own = own_figures(replies=context.replies, replicas=len(relay.fleet.peers), moved=relay.moved)
        return Reply((labelled(texts) + own).encode(), TEXT)

    return verb
