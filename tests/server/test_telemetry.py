"""Traced calls as OpenTelemetry spans: in memory, and over HTTP to a receiver that decodes them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from latebind.domain.tracing import Span, Trace
from latebind.server.telemetry import SpanExport
from latebind.server.tracing import TracedCall

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STAGE = Span("stage", 1.25, 1.5, facts={"stage": 2, "worker": 0, "batch": 4, "runs": 1, "joined": 0})
LOOKUP = Span("lookup", 1.5, 1.75, facts={"stage": 2, "hit": True})


def call(*rows: list[Span], parent: str = "", outcome: str = "answered") -> TracedCall:
    traces = [Trace(1, 10 + i, "net", 1.125, 9.0, 0, spans, 0, 1.75) for i, spans in enumerate(rows)]
    return TracedCall(1, "mine", "net", "7", len(rows), parent, 1.0, 1e9, True, 2.0, outcome, traces, {"L": 17})


def exported(explained: TracedCall) -> dict[str, ReadableSpan]:
    memory = InMemorySpanExporter()
    SpanExport(SimpleSpanProcessor(memory))(explained)
    return {span.name: span for span in memory.get_finished_spans()}


def test_a_call_is_a_root_with_a_span_for_each_part_of_its_life() -> None:
    spans = exported(call([Span("wait", 1.125, 1.25), STAGE, LOOKUP]))
    assert set(spans) == {"infer net", "receive", "wait", "stage 2", "lookup 2", "reply"}
    root = spans.pop("infer net")
    assert root.kind is SpanKind.SERVER
    assert root.parent is None
    assert (root.start_time, root.end_time) == (1_000_000_001_000_000_000, 1_000_000_002_000_000_000)
    assert root.attributes is not None
    assert (root.attributes["latebind.request_id"], root.attributes["latebind.rows"]) == ("mine", 1)
    assert root.attributes["latebind.dim.L"] == 17
    assert all(span.parent is not None and span.parent.span_id == root.context.span_id for span in spans.values())
    stage = spans["stage 2"]
    assert (stage.start_time, stage.end_time) == (1_000_000_001_250_000_000, 1_000_000_001_500_000_000)
    assert stage.attributes is not None
    assert stage.attributes["latebind.batch"] == 4


def test_what_belongs_to_a_step_lies_under_it() -> None:
    step = Span("step", 1.25, 1.75, "cars", {"model": "small", "budget": 0.5})
    spans = exported(call([Span("stage", 1.25, 1.5, "cars", {"stage": 0}), step, Span("map", 1.5, 1.75, "outputs")]))
    parent = spans["stage 0"].parent
    assert parent is not None
    assert parent.span_id == spans["step cars"].context.span_id
    assert spans["step cars"].parent == spans["map"].parent


def test_rows_of_one_call_lie_under_spans_of_their_own() -> None:
    spans = exported(call([STAGE], [STAGE, LOOKUP]))
    parent = spans["lookup 2"].parent
    assert parent is not None
    assert parent.span_id == spans["row 1"].context.span_id


@contextmanager
def receiver(heard: list[ExportTraceServiceRequest]) -> Iterator[str]:
    """A collector that listens on a free port and decodes what comes."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                heard.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("path", ["", "/v1/traces"])
def test_spans_reach_a_collector(path: str) -> None:
    heard: list[ExportTraceServiceRequest] = []
    with receiver(heard) as url:
        export = SpanExport.over_http(url + path)
        export(call([STAGE, LOOKUP], parent=PARENT))
        export.close()
    (resource,) = [resource for request in heard for resource in request.resource_spans]
    names = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert names["service.name"] == "latebind"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert spans["stage 2"].parent_span_id == spans["infer net"].span_id
    assert spans["infer net"].trace_id.hex() == PARENT.split("-")[1]
