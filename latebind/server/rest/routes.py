"""All HTTP routes, and the verbs that do not run a model: metadata, loading, settings and shared memory.

There is only one repository, so the name of a repository in the path has no effect.
"""

import asyncio
from collections.abc import Awaitable, Callable
from copy import deepcopy
from math import ceil
from typing import Any, TypeVar

import msgspec
import orjson

from latebind.domain.errors import InvalidRequest, TooLarge, TurnedOff, Unsupported
from latebind.server.access import Access
from latebind.server.dashboard import PAGE, Dashboard
from latebind.server.description import metadata, model_config
from latebind.server.metrics import prometheus_text
from latebind.server.rest.infer import Context, generate, generate_stream, infer
from latebind.server.rest.messages import JSON, Errors, Headers, Reply, Verb, json_reply
from latebind.server.rest.openapi import BYTES, EVENTS, Route, document
from latebind.server.rest.openapi import JSON as JSON_TYPE
from latebind.server.rest.openapi import TEXT as TEXT_TYPE
from latebind.server.rest.protocol import Request
from latebind.server.rest.tasks import openai, rerank, tei
from latebind.server.service import Service
from latebind.server.shared_memory import Regions, Registration

T = TypeVar("T")

TEXT: Headers = ((b"content-type", b"text/plain; version=0.0.4; charset=utf-8"),)
NO_REGIONS = Regions()  # those of CUDA: clients may ask for them and forget them all


class RepositoryBody(msgspec.Struct):
    """The JSON of a call about the repository; `ready` asks for an index of only the models that are ready."""

    ready: bool = False
    parameters: dict[str, object] = {}


async def read_json(context: Context, request: Request, kind: type[T]) -> T:
    """Read a small body as JSON of this type; an empty one is `{}`. Raises what reading raises and `InvalidRequest`."""
    most = context.limits.header_bytes
    body = await request.read(most + 1)
    if len(body) > most:
        raise TooLarge(f"the body has more than {most} bytes, the most that this call takes: send less")
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON is invalid for this call: {error}") from None


def json_verb(function: Callable[[Context, Request], object]) -> Verb:
    """Return a verb that answers with what `function` returns, as JSON."""

    async def verb(context: Context, request: Request) -> Reply:
        return json_reply(function(context, request))

    return verb


# The server and its models --------------------------------------------------------------------------------------------

server_metadata = json_verb(lambda context, _: context.service.server_metadata())
models = json_verb(lambda context, _: {"models": context.service.names()})  # as KServe has it
model_metadata = json_verb(
    lambda context, request: metadata(
        context.service.model(request.model, request.version), context.service.versions(request.model)
    )
)


@json_verb
def configuration(context: Context, request: Request) -> object:
    """The protocol's configuration of a model."""
    spec = context.service.model(request.model, request.version)
    return model_config(spec, context.service.models(), max_rows=context.limits.max_rows)


def health_reply(word: str, well: bool, **about: str) -> Reply:
    """Return the reply to a health check: 200 or 400, as Triton does, with KServe's body."""
    return Reply(orjson.dumps({**about, word: well}), JSON, 200 if well else 400)


def checks(word: str, well: Callable[[Service], bool]) -> Verb:
    """Return the verb of a health check of the server."""

    async def verb(context: Context, request: Request) -> Reply:
        del request
        return health_reply(word, well(context.service))

    return verb


live = checks("live", Service.live)
ready = checks("ready", Service.ready)


async def model_ready(context: Context, request: Request) -> Reply:
    """Whether a model can be called."""
    well = context.service.model_ready(request.model, request.version)
    return health_reply("ready", well, name=request.model)


# Figures --------------------------------------------------------------------------------------------------------------


async def statistics(context: Context, request: Request) -> Reply:
    """The protocol's statistics; the header `Age` is there if the figures are old."""
    found, age = await context.service.statistics(request.names.get("model"), request.version)
    reply = json_reply(found)
    return Reply(reply.body, (*JSON, (b"age", b"%d" % ceil(age)))) if age else reply


traces = json_verb(lambda context, _: {"traces": context.service.tracing.last()})  # the last calls that were traced


async def metrics(context: Context, request: Request) -> Reply:
    """The figures for Prometheus."""
    del request
    service = context.service
    snapshot, adaptation = await service.gateway.metrics(), service.adaptation()
    versions = {spec.name: spec.version for spec in service.models()}
    replies, reading, turned_away = dict(context.replies), deepcopy(service.reading), deepcopy(service.turned_away)
    queries = {spec.name for spec in service.models() if spec.steps}
    splits = [chooser.split for chooser in service.splits.values()]
    shares = {split.served[version]: share for split in splits for version, share in split.shares.items()}
    shadows = {name: {**service.shadows.counts(name)} for split in splits for name in split.served.values()}
    compared = {name: service.shadows.compared(name) for name in shadows}

    def written() -> bytes:  # of a thousand models it takes half a second of a core
        from latebind.learned.promise import bounded  # noqa: PLC0415  (a server without shadows has no use for it)

        machine = context.machine.figures(snapshot.get("gpu"))
        return prometheus_text(
            snapshot,
            versions=versions,
            replies=replies,
            queries=queries,
            adaptation=adaptation,
            machine=machine,
            reading=reading,
            turned_away=turned_away,
            shares=shares,
            shadows=shadows,
            agreement={name: bounded(last) for name, last in compared.items()},
        )

    return Reply(await asyncio.to_thread(written), TEXT)


# What clients change --------------------------------------------------------------------------------------------------


async def index(context: Context, request: Request) -> Reply:
    """Every model and its state; the body may be empty."""
    body = await read_json(context, request, RepositoryBody)
    return json_reply(context.service.index(ready=body.ready))


async def load(context: Context, request: Request) -> Reply:
    """Serve a model; answered once it is served."""
    body = await read_json(context, request, RepositoryBody)
    await context.service.load(request.model, body.parameters)
    return Reply()


async def unload(context: Context, request: Request) -> Reply:
    """Stop serving a model; answered once no call uses it any more."""
    body = await read_json(context, request, RepositoryBody)
    await context.service.unload(request.model, body.parameters)
    return Reply()


trace_settings = json_verb(lambda context, request: context.service.trace_settings(request.names.get("model")))
log_settings = json_verb(lambda context, _: context.service.log.as_dict())


async def update_trace_settings(context: Context, request: Request) -> Reply:
    """Change trace settings; returns those that hold from then on."""
    given = await read_json(context, request, dict[str, Any])
    return json_reply(context.service.update_trace_settings(given, request.names.get("model")))


async def update_log_settings(context: Context, request: Request) -> Reply:
    """Change log settings; returns those that hold from then on."""
    context.service.log.update(await read_json(context, request, dict[str, Any]))
    return json_reply(context.service.log.as_dict())


# Shared memory of clients ---------------------------------------------------------------------------------------------


def _regions(context: Context, request: Request) -> Regions:
    return NO_REGIONS if request.head.target.startswith(b"/v2/cuda") else context.service.regions


regions = json_verb(lambda context, request: _regions(context, request).status(request.names["region"]))


async def register(context: Context, request: Request) -> Reply:
    """Register a region of shared memory."""
    context.service.regions.register(request.names["region"], await read_json(context, request, Registration))
    return Reply()


async def register_cuda(context: Context, request: Request) -> Reply:
    """Refuse a region of a GPU's memory."""
    del context, request
    raise Unsupported("CUDA shared memory is not served: use system shared memory")


async def unregister(context: Context, request: Request) -> Reply:
    """Forget a region of shared memory, or all."""
    _regions(context, request).unregister(request.names["region"])
    return Reply()


# The dashboard --------------------------------------------------------------------------------------------------------


def shows(shown: Callable[[Dashboard, Context, Request], Awaitable[Reply]]) -> Verb:
    """Return a verb of the dashboard, where there is one."""

    async def verb(context: Context, request: Request) -> Reply:
        if context.dashboard is None:
            raise TurnedOff("the dashboard is off: start the server with --dashboard")
        return await shown(context.dashboard, context, request)

    return verb


@shows
async def to_the_page(dashboard: Dashboard, context: Context, request: Request) -> Reply:
    """Redirect to the page, since paths in the page are relative, so that a proxy may put it anywhere."""
    del dashboard, context, request
    return Reply(headers=((b"location", b"dashboard/"),), status=307)


page = shows(lambda dashboard, _, request: dashboard.file(request.names.get("FILE", PAGE)))
figures = shows(lambda dashboard, context, _: dashboard.figures(context.replies))
picture = shows(lambda dashboard, *_: dashboard.picture())


# The routes -----------------------------------------------------------------------------------------------------------

OPEN, ORDINARY, MUTATING = Access.OPEN, Access.ORDINARY, Access.MUTATING
MODEL = "/v2/models/{model}[/versions/{version}]"
REPOSITORY = "/v2/repository[/{repository}]"
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
TRACES = "/v2[/models/{model}]/trace/setting"
BOTH = (JSON_TYPE, BYTES)
ASKING, ASKING_TEI = (404, 500, 504), (404, 424, 429, 504)  # statuses of calls that ask a model


async def description(context: Context, request: Request) -> Reply:
    """`GET /v2/openapi.json`."""
    del request
    return json_reply(document(ROUTES, context.prefix))


OPENAI, COHERE, TEI = (ASKING, openai.OPENAI), (ASKING, rerank.COHERE), (ASKING_TEI, tei.TEI)
NAMED = "[/models/{model}]"
RANKS = "Rank texts by how well they answer a query"
VECTORS = "Embed texts"
# The APIs of other tools: path, verb, summary, the bodies of reply and call, statuses and errors.
TOOLS: tuple[tuple[str, Verb, str, str, str, tuple[int, ...], Errors], ...] = (
    ("[/v1]/embeddings", openai.embeddings, f"{VECTORS} (OpenAI)", "Embeddings", "EmbeddingsRequest", *OPENAI),
    ("/classify", openai.classify, "Classify texts (vLLM)", "Classes", "ClassifyRequest", *OPENAI),
    ("[/v1]/score", openai.score, "Score pairs of texts (vLLM)", "Scores", "ScoreRequest", *OPENAI),
    (f"{NAMED}/rerank", rerank.rerank, f"{RANKS} (TEI, Jina, Cohere)", "Any", "RerankRequest", ASKING_TEI, tei.RERANK),
    ("/v1/rerank", rerank.rerank, f"{RANKS} (Cohere, Jina)", "Any", "RerankRequest", *COHERE),
    ("/v2/rerank", rerank.rerank, f"{RANKS} (Cohere, Jina)", "Any", "RerankRequest", *COHERE),
    (f"{NAMED}/embed", tei.embed, f"{VECTORS} (TEI)", "Vectors", "EmbedRequest", *TEI),
    (f"{NAMED}/predict", tei.predict, "Classify texts (TEI)", "Predictions", "PredictRequest", *TEI),
    (f"{NAMED}/predict_tokens", tei.predict_tokens, "Classify tokens (TEI)", "Predictions", "TokensRequest", *TEI),
)

ROUTES: tuple[Route, ...] = (
    Route("POST", f"{MODEL}/infer", ORDINARY, infer, "Infer", "InferReply", "InferRequest", (500, 504), BOTH),
    Route(
        *("POST", f"{MODEL}/generate", ORDINARY, generate),
        *("Infer one row", "GenerateReply", "GenerateRequest", (500, 504)),
    ),
    Route(
        *("POST", f"{MODEL}/generate_stream", ORDINARY, generate_stream),
        *("Infer one row and stream its tokens", "Event", "GenerateRequest", (500, 504)),
        reply_media=(EVENTS,),
    ),
    Route("GET", "/v2/health/live", OPEN, live, "Whether the server and its engine run", "Live", health=True),
    Route("GET", "/v2/health/ready", OPEN, ready, "Whether every model is ready", "Ready", health=True),
    Route("GET", "/v2", ORDINARY, server_metadata, "Name, version and extensions of the server", "ServerMetadata"),
    Route("GET", "/v2/openapi.json", ORDINARY, description, "This description", "Any"),
    Route("GET", "/v2/models", ORDINARY, models, "The names of all models and queries", "Models"),
    # Before the model of this name:
    Route("GET", "/v2/models/stats", ORDINARY, statistics, "Statistics of all models", "Statistics"),
    Route("GET", f"{MODEL}/stats", ORDINARY, statistics, "Statistics of a model", "Statistics"),
    Route("GET", f"{MODEL}/ready", ORDINARY, model_ready, "Whether a model is ready", "ModelReady", health=True),
    Route("GET", f"{MODEL}/config", ORDINARY, configuration, "The configuration of a model", "ModelConfig"),
    Route("GET", MODEL, ORDINARY, model_metadata, "Inputs and outputs of a model", "ModelMetadata"),
    Route("POST", f"{REPOSITORY}/index", ORDINARY, index, "Every model and its state", "Index", "IndexRequest"),
    Route(
        *("POST", f"{REPOSITORY}/models/{{model}}/load", MUTATING, load),
        *("Load a model's newest version", None, "Load"),
    ),
    Route(
        *("POST", f"{REPOSITORY}/models/{{model}}/unload", MUTATING, unload),
        *("Unload a model", None, "Unload"),
    ),
    Route("GET", "/v2/traces", ORDINARY, traces, "The last traces", "Traces"),
    Route("GET", TRACES, ORDINARY, trace_settings, "Trace settings", "TraceSettings"),
    Route("POST", TRACES, MUTATING, update_trace_settings, "Change trace settings", "TraceSettings", "TraceChange"),
    Route("GET", "/v2/logging", ORDINARY, log_settings, "Log settings", "LogSettings"),
    Route("POST", "/v2/logging", MUTATING, update_log_settings, "Change log settings", "LogSettings", "LogChange"),
    Route(
        "GET", f"{SYSTEM}[/region/{{region}}]/status", ORDINARY, regions, "Registered shared memory regions", "Regions"
    ),
    Route(
        *("POST", f"{SYSTEM}/region/{{region}}/register", MUTATING, register),
        *("Register a region", None, "Registration", (409,)),
    ),
    Route(
        "POST",
        f"{SYSTEM}[/region/{{region}}]/unregister",
        MUTATING,
        unregister,
        "Unregister regions; running calls continue",
    ),
    Route("GET", f"{CUDA}[/region/{{region}}]/status", ORDINARY, regions, "Always empty", "Regions"),
    Route(
        *("POST", f"{CUDA}/region/{{region}}/register", MUTATING, register_cuda),
        *("Not supported", None, "Object", (501,)),
    ),
    Route("POST", f"{CUDA}[/region/{{region}}]/unregister", MUTATING, unregister, "Does nothing"),
    Route("GET", "/metrics", ORDINARY, metrics, "Metrics for Prometheus", "Text", media=(TEXT_TYPE,)),
    *[
        Route("POST", path, ORDINARY, verb, summary, reply, body, statuses, errors=errors)
        for path, verb, summary, reply, body, statuses, errors in TOOLS
    ],
    Route(
        *("GET", "/v1/models", ORDINARY, openai.list_models, "List models (OpenAI)", "ModelCards"),
        errors=openai.OPENAI,
    ),
    Route(
        *("GET", "/v1/models/{model}", ORDINARY, openai.one_model, "Describe a model (OpenAI)", "ModelCard"),
        errors=openai.OPENAI,
    ),
    *[Route("POST", path, ORDINARY, tei.whatever, errors=tei.TEI) for path in ("/", "/models/{model}")],
    Route(
        *("GET", "[/models/{model}]/info", ORDINARY, tei.info, "Describe a model (TEI)", "Info"),
        errors=tei.TEI,
    ),
    Route("GET", "/health", OPEN, tei.health),  # 503 where `/v2/health/ready` has 400
    # The page is not part of the protocol and is not described. Its files contain no data.
    Route("GET", "/dashboard", OPEN, to_the_page),
    Route("GET", "/dashboard/", OPEN, page),
    Route("GET", "/dashboard/data", ORDINARY, figures),
    Route("GET", "/dashboard/picture", ORDINARY, picture),
    Route("GET", "/dashboard/{FILE}", OPEN, page),
)
