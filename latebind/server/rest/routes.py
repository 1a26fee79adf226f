"""Which path and method lead to which verb."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from latebind.server.rest import about, dashboard
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
        ("/metrics", "GET", about.metrics),
        ("/dashboard", "GET", dashboard.to_the_page),
        ("/dashboard/", "GET", dashboard.page),
        ("/dashboard/data(?:/(?P<since>[0-9]{1,15}))?", "GET", dashboard.figures),
        ("/dashboard/picture", "GET", dashboard.picture),
        ("/dashboard/(?P<file>[a-z]+[.][a-z]+)", "GET", dashboard.file),
    )
)
