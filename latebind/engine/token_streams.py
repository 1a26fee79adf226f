"""Requests whose clients get each token when it is written: how many tokens each has, and what the door is told."""

from latebind.domain.actions import Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, StageDone
from latebind.domain.model import StageKind
from latebind.engine.messages import pack_wrote


class TokenStreams:
    """The streaming requests of all workers.

    The tokens lie in the request's slot, where the worker writes them; only their number is told. A request is run by
    one thread at a time.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        last = {served.spec.name: served.spec.stages - 1 for served in config.models}
        self._decoders = {
            served.spec.name: last[served.spec.name]
            for served in config.models
            if served.spec.kind(last[served.spec.name]) is StageKind.DECODER
        }
        self.tokens: dict[int, int] = {}  # that are written, by request

    def arrived(self, event: Arrived) -> None:
        """Register the requests of a call, if it streams."""
        if event.streams and event.model in self._decoders:
            self.tokens.update(dict.fromkeys(event.requests, 0))

    def ran(self, run: Run, done: StageDone) -> bytes:
        """Return what the door is told of a run; of requests that are complete, their end tells the last token."""
        if self._decoders.get(run.model) != run.stage:
            return b""
        told = list[bytes]()
        for request in run.requests:
            tokens = self.tokens.get(request)
            if tokens is not None and request not in done.exited:
                self.tokens[request] = tokens + 1
                told.append(pack_wrote(request, tokens + 1))
        return b"".join(told)

    def ended(self, request: int) -> None:
        """Forget a request."""
        self.tokens.pop(request, None)
