"""What all HTTP verbs share: the service, the limits, the codec of each model, the count of replies, the dashboard."""

from collections import Counter
from typing import Any

from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.limits import Limits
from latebind.server.metrics import Machine
from latebind.server.rest.request import Held
from latebind.server.service import Service


class Context:
    """The context of one server's verbs. `codecs` are those of `rest/infer.py`, by model."""

    def __init__(self, service: Service, limits: Limits, dashboard: Dashboard | None = None) -> None:
        self.service = service
        self.limits = limits
        self.dashboard = dashboard
        self.held = Held(limits.held_bytes)
        self.replies: Counter[int] = Counter()
        self.machine = Machine()
        self.codecs: dict[str, Any] = {}
