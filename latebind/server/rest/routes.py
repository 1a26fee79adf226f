"""Which path and method lead to which verb, and what a caller has to show for it."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from latebind.repository.manifest import NAME
from latebind.server.access import Access
from latebind.server.rest import about, repository
from latebind.server.rest.desk import Desk
from latebind.server.rest.infer import infer
from latebind.server.rest.request import Reply, Request

Verb = Callable[[Desk, Request], Coroutine[Any, Any, Reply]]

NAMED = rf"(?P<model>{NAME.pattern})"
MODEL = rf"/v2/models/{NAMED}(?:/versions/(?P<version>[0-9]{{1,18}}))?"
REPOSITORY = rf"/v2/repository(?:/{NAME.pattern})?"
ROUTES: tuple[tuple[re.Pattern[str], str, Access, Verb], ...] = tuple(
    (re.compile(path), method, access, verb)
    for path, method, access, verb in (
        (MODEL + "/infer", "POST", Access.ORDINARY, infer),
        ("/v2/health/live", "GET", Access.OPEN, about.live),
        ("/v2/health/ready", "GET", Access.OPEN, about.ready),
        ("/v2", "GET", Access.ORDINARY, about.server_metadata),
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
        ("/metrics", "GET", Access.ORDINARY, about.metrics),
    )
)
