"""Which path and method lead to which verb."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from latebind.server.rest import about, regions
from latebind.server.rest.desk import Desk
from latebind.server.rest.infer import infer
from latebind.server.rest.request import Reply, Request

Verb = Callable[[Desk, Request], Coroutine[Any, Any, Reply]]

MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
REGION = r"/region/(?P<region>[^/]+)"
ROUTES: tuple[tuple[re.Pattern[str], str, Verb], ...] = tuple(
    (re.compile(path), method, verb)
    for path, method, verb in (
        (MODEL + "/infer", "POST", infer),
        ("/v2/health/live", "GET", about.live),
        ("/v2/health/ready", "GET", about.ready),
        ("/v2", "GET", about.server_metadata),
        ("/v2/models", "GET", about.models),
        ("/v2/models/stats", "GET", about.statistics),  # before the model of this name
        (MODEL + "/stats", "GET", about.statistics),
        (MODEL + "/ready", "GET", about.model_ready),
        (MODEL + "/config", "GET", about.configuration),
        (MODEL, "GET", about.model_metadata),
        ("/v2/repository/index", "POST", about.index),
        (f"/v2/systemsharedmemory(?:{REGION})?/status", "GET", regions.status),
        (f"/v2/systemsharedmemory{REGION}/register", "POST", regions.register),
        (f"/v2/systemsharedmemory(?:{REGION})?/unregister", "POST", regions.unregister),
        (f"/v2/cudasharedmemory(?:{REGION})?/status", "GET", regions.cuda_status),
        (f"/v2/cudasharedmemory{REGION}/register", "POST", regions.cuda_register),
        (f"/v2/cudasharedmemory(?:{REGION})?/unregister", "POST", regions.cuda_unregister),
        ("/metrics", "GET", about.metrics),
    )
)
