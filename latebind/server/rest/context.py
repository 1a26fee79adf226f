"""What all HTTP verbs share: the service, the limits, a codec for each model, the count of replies, the dashboard."""

from collections import Counter

from latebind.domain.model import ModelSpec
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.limits import Limits
from latebind.server.machine import Machine
from latebind.server.rest.body import Held
from latebind.server.rest.codec import Codec
from latebind.server.service import Service


class Context:
    """The context of one door's verbs."""

    def __init__(self, service: Service, limits: Limits, dashboard: Dashboard | None = None) -> None:
        self.service = service
        self.limits = limits
        self.dashboard = dashboard
        self.held = Held(limits.held_bytes)
        self.replies: Counter[int] = Counter()
        self.machine = Machine()
        self._codecs: dict[str, Codec] = {}

    def codec(self, spec: ModelSpec) -> Codec:
        """Return the codec of the version of a model that is served now."""
        codec = self._codecs.get(spec.name)
        if codec is None or codec.spec is not spec:
            codec = self._codecs[spec.name] = Codec(spec, self.limits, self.service.regions)
        return codec
