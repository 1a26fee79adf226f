"""Which path and method lead to which verb, and what a caller has to show for it."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from latebind.repository.directory import NAME
from latebind.server.access import Access
from latebind.server.rest import about, dashboard, openapi, regions, repository, settings
from latebind.server.rest.context import Context
from latebind.server.rest.generate import generate, generate_stream
from latebind.server.rest.infer import infer
from latebind.server.rest.request import Reply, Request

Verb = Callable[[Context, Request], Coroutine[Any, Any, Reply]]

NAMED = rf"(?P<model>{NAME.pattern})"
MODEL_ALONE = rf"/v2/models/{NAMED}"
MODEL = MODEL_ALONE + r"(?:/versions/(?P<version>[0-9]{1,18}))?"
REPOSITORY = rf"/v2/repository(?:/(?P<repository>{NAME.pattern}))?"
REGION = r"/region/(?P<region>[^/]+)"
Route = tuple[re.Pattern[str], str, Access, Verb]
ROUTES: tuple[Route, ...] = tuple(
    (re.compile(path), method, access, verb)
    for path, method, access, verb in (
        (MODEL + "/infer", "POST", Access.ORDINARY, infer),
        (MODEL + "/generate", "POST", Access.ORDINARY, generate),
        (MODEL + "/generate_stream", "POST", Access.ORDINARY, generate_stream),
        ("/v2/health/live", "GET", Access.OPEN, about.live),
        ("/v2/health/ready", "GET", Access.OPEN, about.ready),
        ("/v2", "GET", Access.ORDINARY, about.server_metadata),
        (r"/v2/openapi\.json", "GET", Access.ORDINARY, openapi.description),
        ("/v2/models", "GET", Access.ORDINARY, about.models),
        ("/v2/models/stats", "GET", Access.ORDINARY, about.statistics),  # before the model of this name
        (MODEL + "/stats", "GET", Access.ORDINARY, about.statistics),
        (MODEL + "/ready", "GET", Access.ORDINARY, about.model_ready),
        (MODEL + "/config", "GET", Access.ORDINARY, about.configuration),
        (MODEL, "GET", Access.ORDINARY, about.model_metadata),
        (REPOSITORY + "/index", "POST", Access.ORDINARY, repository.index),
        (REPOSITORY + f"/models/{NAMED}/load", "POST", Access.MUTATING, repository.load),
        (REPOSITORY + f"/models/{NAMED}/unload", "POST", Access.MUTATING, repository.unload),
        ("/v2/traces", "GET", Access.ORDINARY, about.traces),
        ("/v2/trace/setting", "GET", Access.ORDINARY, settings.traces),
        ("/v2/trace/setting", "POST", Access.MUTATING, settings.update_traces),
        (MODEL_ALONE + "/trace/setting", "GET", Access.ORDINARY, settings.traces),
        (MODEL_ALONE + "/trace/setting", "POST", Access.MUTATING, settings.update_traces),
        ("/v2/logging", "GET", Access.ORDINARY, settings.log),
        ("/v2/logging", "POST", Access.MUTATING, settings.update_log),
        (f"/v2/systemsharedmemory(?:{REGION})?/status", "GET", Access.ORDINARY, regions.status),
        (f"/v2/systemsharedmemory{REGION}/register", "POST", Access.MUTATING, regions.register),
        (f"/v2/systemsharedmemory(?:{REGION})?/unregister", "POST", Access.MUTATING, regions.unregister),
        (f"/v2/cudasharedmemory(?:{REGION})?/status", "GET", Access.ORDINARY, regions.cuda_status),
        (f"/v2/cudasharedmemory{REGION}/register", "POST", Access.MUTATING, regions.cuda_register),
        (f"/v2/cudasharedmemory(?:{REGION})?/unregister", "POST", Access.MUTATING, regions.cuda_unregister),
        ("/metrics", "GET", Access.ORDINARY, about.metrics),
    )
)
# The page is no part of the protocol, and `rest/openapi` does not describe it. Its files tell nothing.
PAGE: tuple[Route, ...] = tuple(
    (re.compile(path), "GET", access, verb)
    for path, access, verb in (
        ("/dashboard", Access.OPEN, dashboard.to_the_page),
        ("/dashboard/", Access.OPEN, dashboard.page),
        ("/dashboard/data(?:/(?P<since>[0-9]{1,15}))?", Access.ORDINARY, dashboard.figures),
        ("/dashboard/picture", Access.ORDINARY, dashboard.picture),
        ("/dashboard/(?P<file>[a-z]+[.][a-z]+)", Access.OPEN, dashboard.file),
    )
)
