"""All routes over HTTP: each with who may have it, its verb, and what `/v2/openapi.json` says of it."""

from latebind.server.access import Access
from latebind.server.rest import about
from latebind.server.rest.infer import Context, generate, generate_stream, infer
from latebind.server.rest.messages import Reply, json_reply
from latebind.server.rest.openapi import BYTES, EVENTS, JSON, TEXT, Route, document
from latebind.server.rest.protocol import Request

OPEN, ORDINARY, MUTATING = Access.OPEN, Access.ORDINARY, Access.MUTATING
MODEL = "/v2/models/{model}[/versions/{version}]"
REPOSITORY = "/v2/repository[/{repository}]"
SYSTEM, CUDA = "/v2/systemsharedmemory", "/v2/cudasharedmemory"
TRACES = "/v2[/models/{model}]/trace/setting"
BOTH = (JSON, BYTES)


async def description(context: Context, request: Request) -> Reply:
    """`GET /v2/openapi.json`."""
    del context, request
    return json_reply(document(ROUTES))


ROUTES: tuple[Route, ...] = (
    Route("POST", f"{MODEL}/infer", ORDINARY, infer, "Ask a model", "InferReply", "InferRequest", (500, 504), BOTH),
    Route(
        *("POST", f"{MODEL}/generate", ORDINARY, generate),
        *("Ask a model with one row", "GenerateReply", "GenerateRequest", (500, 504)),
    ),
    Route(
        *("POST", f"{MODEL}/generate_stream", ORDINARY, generate_stream),
        *("Ask a model with one row, for its tokens as they are written", "Event", "GenerateRequest", (500, 504)),
        reply_media=(EVENTS,),
    ),
    Route("GET", "/v2/health/live", OPEN, about.live, "Whether the server and its engine run", "Live", health=True),
    Route("GET", "/v2/health/ready", OPEN, about.ready, "Whether every model can be asked", "Ready", health=True),
    Route("GET", "/v2", ORDINARY, about.server_metadata, "What the server is, and its extensions", "ServerMetadata"),
    Route("GET", "/v2/openapi.json", ORDINARY, description, "This description", "Any"),
    Route("GET", "/v2/models", ORDINARY, about.models, "The names of all models and queries", "Models"),
    # Before the model of this name:
    Route("GET", "/v2/models/stats", ORDINARY, about.statistics, "Statistics of all models", "Statistics"),
    Route("GET", f"{MODEL}/stats", ORDINARY, about.statistics, "Statistics of a model", "Statistics"),
    Route("GET", f"{MODEL}/ready", ORDINARY, about.model_ready, "Whether it can be asked", "ModelReady", health=True),
    Route("GET", f"{MODEL}/config", ORDINARY, about.configuration, "The configuration of a model", "ModelConfig"),
    Route("GET", MODEL, ORDINARY, about.model_metadata, "What a model takes and gives", "ModelMetadata"),
    Route("POST", f"{REPOSITORY}/index", ORDINARY, about.index, "Every model and its state", "Index", "IndexRequest"),
    Route(
        *("POST", f"{REPOSITORY}/models/{{model}}/load", MUTATING, about.load),
        *("Serve a model's newest version", None, "Load"),
    ),
    Route(
        *("POST", f"{REPOSITORY}/models/{{model}}/unload", MUTATING, about.unload),
        *("Serve a model no more", None, "Unload"),
    ),
    Route("GET", "/v2/traces", ORDINARY, about.traces, "What became of the last calls that were traced", "Traces"),
    Route("GET", TRACES, ORDINARY, about.trace_settings, "Which calls are traced", "TraceSettings"),
    Route("POST", TRACES, MUTATING, about.update_trace_settings, "Trace other calls", "TraceSettings", "TraceChange"),
    Route("GET", "/v2/logging", ORDINARY, about.log_settings, "What the log has", "LogSettings"),
    Route("POST", "/v2/logging", MUTATING, about.update_log_settings, "Log something else", "LogSettings", "LogChange"),
    Route("GET", f"{SYSTEM}[/region/{{region}}]/status", ORDINARY, about.regions, "What is registered", "Regions"),
    Route(
        *("POST", f"{SYSTEM}/region/{{region}}/register", MUTATING, about.register),
        *("Register a region", None, "Registration", (409,)),
    ),
    Route("POST", f"{SYSTEM}[/region/{{region}}]/unregister", MUTATING, about.unregister, "Forget; calls go on"),
    Route("GET", f"{CUDA}[/region/{{region}}]/status", ORDINARY, about.regions, "Nothing, ever", "Regions"),
    Route(
        *("POST", f"{CUDA}/region/{{region}}/register", MUTATING, about.register),
        *("It is not served", None, "Object", (501,)),
    ),
    Route("POST", f"{CUDA}[/region/{{region}}]/unregister", MUTATING, about.unregister, "Nothing is there to forget"),
    Route("GET", "/metrics", ORDINARY, about.metrics, "Figures for Prometheus", "Text", media=(TEXT,)),
    # The page is no part of the protocol and is not described. Its files tell nothing.
    Route("GET", "/dashboard", OPEN, about.to_the_page),
    Route("GET", "/dashboard/", OPEN, about.page),
    Route("GET", "/dashboard/data[/{SINCE}]", ORDINARY, about.figures),
    Route("GET", "/dashboard/picture", ORDINARY, about.picture),
    Route("GET", "/dashboard/{FILE}", OPEN, about.page),
)
