"""The ingress: the frontend that clients call. It has no engine and sends calls on to replicas.

This module says which HTTP routes one replica answers, which all replicas, and which the ingress; `rpc.py` has gRPC.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import orjson
from msgspec.structs import replace

from latebind.cluster.fleet import Fleet
from latebind.cluster.merging import labeled, own_figures
from latebind.cluster.replica import Application
from latebind.cluster.rpc import relayed_methods
from latebind.cluster.upstream import ReplicaInfo
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from latebind.server.rest import routes
from latebind.server.rest.infer import Context, infer
from latebind.server.rest.messages import Reply, Verb, json_reply
from latebind.server.rest.openapi import Route
from latebind.server.rest.protocol import Request
from latebind.server.rest.routes import ROUTES, TEXT, health_reply
from latebind.server.rest.tasks import openai, rerank, tei
from latebind.server.rest.tasks.asking import model_named

# Verbs whose body may name a model.
ASKING = (
    *(openai.embeddings, openai.classify, openai.score, rerank.rerank),
    *(tei.embed, tei.predict, tei.predict_tokens, tei.whatever),
)
PERIOD = 0.2  # seconds between two updates of the list of replicas

Look = Callable[[Callable[[Sequence[ReplicaInfo]], None]], Awaitable[None]]

logger = logging.getLogger(__name__)


class Ingress:
    """A frontend in front of all replicas that `look` reports. Ray asks it by these names (`deployments.py`)."""

    async def open(self, application: Application, look: Look, *, limits: Limits | None = None) -> None:
        """Open the frontend once there is a replica. Raises what `Frontend.open` raises."""
        settings, limits = application.settings, limits or Limits.by(application.settings.server)
        self._look = look
        self.fleet = Fleet(most=settings.cluster.calls, limits=limits, secret=application.secret)
        await look(self.fleet.see)
        methods = None if settings.server.grpc_port is None else relayed_methods(self.fleet)
        config, routes = replace(settings.server, dashboard=False), relayed_routes(self.fleet)
        self.frontend = Frontend(self.fleet, config, limits=limits, routes=routes, methods=methods)
        await self.frontend.open()
        self._following = asyncio.create_task(self._follow())

    async def ports(self) -> tuple[int, int | None]:
        """Return the ports for HTTP and gRPC."""
        return self.frontend.port, self.frontend.grpc_port

    async def check_health(self) -> None:
        """Raise if the ingress no longer updates its list of replicas."""
        if self._following.done():
            self._following.result()

    async def close(self) -> None:
        """Answer the calls under way, then close."""
        self.frontend.close()
        await self.frontend.closed()
        self._following.cancel()
        self.fleet.close()

    async def _follow(self) -> None:
        """Update the list of replicas at intervals."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self._look(self.fleet.see)
            except Exception:  # the root of this task: the next update may succeed
                logger.exception("the list of replicas could not be read")
            for peer in self.fleet.peers:
                peer.check()


def relayed_routes(fleet: Fleet) -> tuple[Route, ...]:
    """Return the routes of the ingress, whose verbs ask replicas."""

    async def one(context: Context, request: Request) -> Reply:
        """Let one replica answer. Making a call twice is harmless: it computes the same result again."""
        async with fleet.read(request) as parts:
            request.watch()
            return await fleet.one(request.names.get("model") or "", parts)

    async def infer_there(context: Context, request: Request) -> Reply:
        fleet.require_room()  # before its body is read
        return await one(context, request)

    async def ask_there(context: Context, request: Request) -> Reply:
        fleet.require_room()
        async with fleet.read(request) as parts:
            request.watch()
            return await fleet.one(request.names.get("model") or model_named(parts[1]), parts)

    async def everywhere(context: Context, request: Request) -> Reply:
        async with fleet.read(request) as parts:
            return await fleet.all(parts)

    async def change(context: Context, request: Request) -> Reply:
        async with fleet.read(request) as parts:
            return await fleet.change(request.model, parts)

    async def ready(context: Context, request: Request) -> Reply:
        return await one(context, request) if context.service.ready() else health_reply("ready", False)

    async def statistics(context: Context, request: Request) -> Reply:
        async with fleet.read(request) as parts:
            return await fleet.statistics(parts)

    async def each(context: Context, request: Request) -> dict[str, bytes]:
        async with fleet.read(request) as parts:
            replies = await fleet.each(parts)
        return {name: reply.body for name, reply in replies.items() if reply.status == 200}

    async def traces(context: Context, request: Request) -> Reply:
        bodies = await each(context, request)
        found = [{**one, "replica": name} for name, body in bodies.items() for one in orjson.loads(body)["traces"]]
        return json_reply({"traces": found})

    async def metrics(context: Context, request: Request) -> Reply:
        texts = {name: body.decode() for name, body in (await each(context, request)).items()}
        own = own_figures(replies=context.replies, replicas=len(fleet.peers), moved=fleet.moved)
        return Reply((labeled(texts) + own).encode(), TEXT)

    verbs: dict[Any, Verb] = {
        infer: infer_there,
        **dict.fromkeys(ASKING, ask_there),
        routes.live: routes.live,
        routes.ready: ready,
        routes.statistics: statistics,
        routes.traces: traces,
        routes.metrics: metrics,
        routes.load: change,
        routes.unload: change,
    }
    settings = (routes.update_trace_settings, routes.update_log_settings, routes.register, routes.unregister)
    verbs |= dict.fromkeys(settings, everywhere)
    return tuple([dataclasses.replace(route, verb=verbs.get(route.verb, one)) for route in ROUTES])
