"""Traces across the hop, with OpenTelemetry and without."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from engine.interface import FinishReason, TokenOutput
from node.metrics import Metrics
from node.observer import Observer
from node.otel import OtelTracer
from node.request import Chunk
from node.tracing import PassingTracer, Tracer, trace_id, traceparent_in, valid_traceparent
from overlay.core.types import NodeId
from tests.unit.node.observations import PEER, SELF, decision, done, request, route

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "0",
        "ff" + PARENT[2:],
        "00-" + "0" * 32 + PARENT[35:],
        PARENT[:36] + "0" * 16 + PARENT[52:],
        None,
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ],
)
def test_what_is_no_traceparent_is_ignored(text: object) -> None:
    assert valid_traceparent(text) == ""
    assert traceparent_in([("traceparent", text)]) == ""


def test_a_traceparent_is_found_in_metadata() -> None:
    assert traceparent_in([("x", "y"), ("traceparent", PARENT)]) == PARENT
    assert traceparent_in(None) == ""
    assert trace_id(PARENT) == "0af7651916cd43dd8448eb211c80319c"


def test_without_opentelemetry_the_callers_trace_passes_through() -> None:
    span = PassingTracer().start("request", PARENT, "server", {})
    assert span.traceparent == PARENT


add_to_server = cast(Callable[[TraceServiceServicer, grpc.Server], None], add_TraceServiceServicer_to_server)


class Collector(TraceServiceServicer):
    """Keeps what is exported to it."""

    def __init__(self) -> None:
        self.spans: dict[str, Span] = {}

    def Export(  # noqa: N802  the generated name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.update({span.name: span for span in scope.spans})
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server = grpc.server(ThreadPoolExecutor(1))
    service = Collector()
    add_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield service, f"http://127.0.0.1:{port}"
    server.stop(None).wait()


def play(entry: Tracer, other: Tracer) -> None:
    """One request that is forwarded, as its entry node and the peer observe it."""
    here = Observer(SELF, Metrics(), entry)
    there = Observer(PEER, Metrics(), other)
    output = TokenOutput("r1", 0, (1,), 4, FinishReason.LENGTH)
    with here.entered(request(PARENT)) as entered:
        entered.saw(route(PEER))
        with (
            entered.attempt(decision(PEER), request()) as attempt,
            there.forwarded_here("r1", NodeId(SELF), 8, attempt.traceparent) as serving,
        ):
            serving.output(output)
        entered.saw(Chunk("a", (1,), 0))
        entered.saw(done(PEER))


def test_spans_of_both_nodes_make_one_trace(collector: tuple[Collector, str]) -> None:
    service, endpoint = collector
    tracers = [OtelTracer(endpoint, node) for node in (SELF, PEER)]
    play(*tracers)
    for tracer in tracers:
        tracer.close()
    spans = service.spans
    assert set(spans) == {"request", "forward", "serve"}
    assert {span.trace_id.hex() for span in spans.values()} == {trace_id(PARENT)}
    assert spans["request"].parent_span_id.hex() == PARENT[36:52]
    assert spans["forward"].parent_span_id == spans["request"].span_id
    assert spans["serve"].parent_span_id == spans["forward"].span_id
    assert [event.name for event in spans["serve"].events] == ["first token"]
    attributes = {each.key: each.value for each in spans["request"].attributes}
    assert attributes["rumormill.request_id"].string_value == "r1"
    assert attributes["rumormill.cached_tokens"].int_value == 4


async def test_a_collector_that_is_down_holds_nobody_up() -> None:
    tracer = OtelTracer("http://127.0.0.1:1", SELF)
    play(tracer, tracer)
    await asyncio.wait_for(asyncio.to_thread(tracer.close), 30)
