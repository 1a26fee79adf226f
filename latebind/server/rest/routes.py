"""Which path and method lead to which verb."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from latebind.server.rest import about
from latebind.server.rest.desk import Desk
from latebind.server.rest.infer import infer
from latebind.server.rest.request import Reply, Request

Verb = Callable[[Desk, Request], Coroutine[Any, Any, Reply]]

MODEL = r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[0-9]+))?"
ROUTES: tuple[tuple[re.Pattern[str], str, Verb], ...] = tuple(
    (re.compile(path), method, verb)
    for path, method, verb in (
        (MODEL + "/infer", "POST", infer),
        ("/v2/health/live", "GET", about.live),
        ("/v2/health/ready", "GET", about.ready),
        ("/v2", "GET", about.server_metadata),
        ("/v2/models", "GET", about.models),
        (MODEL + "/ready", "GET", about.model_ready),
        (MODEL + "/config", "GET", about.configuration),
        (MODEL, "GET", about.model_metadata),
        ("/v2/repository/index", "POST", about.index),
        ("/v2/traces", "GET", about.traces),
        ("/metrics", "GET", about.metrics),
    )
)
