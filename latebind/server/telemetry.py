"""Traced calls as OpenTelemetry spans: a root for each call, below it a span for each wait, stage, lookup, load, step.

Needs the extra `telemetry`. All times are on the clock of the machine that frontend and engine share.
"""

from typing import Self

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from latebind import __version__
from latebind.domain.tracing import Trace
from latebind.server.tracing import TracedCall

NANOSECONDS = 1e9
TRACES = "/v1/traces"  # the path of a collector that is named without one
NUMBERED = ("stage", "lookup")


class SpanExport:
    """Turns a complete traced call into spans and hands them to `processor`. Call it on the frontend's event loop."""

    def __init__(self, processor: SpanProcessor) -> None:
        resource = Resource.create({"service.name": "latebind", "service.version": __version__})
        self._provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("latebind", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def over_http(cls, url: str) -> Self:
        """Send spans to a collector from a thread; spans that it does not accept are lost after some tries."""
        host = url.split("://", 1)[-1]
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=url if "/" in host else url + TRACES)))

    def __call__(self, call: TracedCall) -> None:
        """Export one call."""
        root = self._tracer.start_span(
            f"infer {call.model}",
            self._propagator.extract({"traceparent": call.parent}) if call.parent else Context(),
            SpanKind.SERVER,
            {
                "latebind.request_id": call.id,
                "latebind.model": call.model,
                "latebind.version": call.version,
                "latebind.rows": call.count,
                "latebind.outcome": call.outcome,
                **{f"latebind.dim.{name}": size for name, size in call.dims.items()},
            },
            start_time=_time(call, call.began),
        )
        if call.outcome != "answered":
            root.set_status(Status(StatusCode.ERROR, call.outcome))
        within = set_span_in_context(root, Context())
        if call.read:
            self._span(call, "read", call.began, call.read, within)
        for place, row in enumerate(call.rows):
            self._row(call, row, within, place)
        root.end(_time(call, call.ended))

    def close(self) -> None:
        """Send what is left, and end the thread."""
        self._provider.shutdown()

    def _row(self, call: TracedCall, row: Trace, within: Context, place: int) -> None:
        """Export a row: directly below the call or, if the call has several rows, below a span of its own."""
        self._span(call, "receive", call.read or call.began, row.arrived, within)
        if call.count > 1:
            within = self._span(call, f"row {place}", row.arrived, row.ended, within)
        steps: dict[str, Context] = {}
        for span in sorted(row.spans, key=lambda span: span.what != "step"):  # the others lie below theirs
            facts = {f"latebind.{name}": fact for name, fact in span.facts.items()}
            name = f"{span.what} {span.facts['stage']}" if span.what in NUMBERED else span.what
            if span.what == "step":
                steps[span.step] = self._span(call, f"step {span.step}", span.start, span.end, within, facts)
            else:
                self._span(call, name, span.start, span.end, steps.get(span.step, within), facts)
        self._span(call, "reply", row.ended, call.ended, within)

    def _span(
        self,
        call: TracedCall,
        name: str,
        start: float,
        end: float,
        within: Context,
        facts: dict[str, int | float | str | bool] | None = None,
    ) -> Context:
        """Export a span and return the context of those below it."""
        made = self._tracer.start_span(name, within, attributes=facts, start_time=_time(call, start))
        made.end(_time(call, max(start, end)))
        return set_span_in_context(made, within)


def _time(call: TracedCall, seconds: float) -> int:
    """Return a time on the scheduler's clock as Unix time in nanoseconds."""
    return round((seconds + call.wall) * NANOSECONDS)
