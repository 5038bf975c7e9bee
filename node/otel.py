"""Spans for OpenTelemetry, sent over OTLP; needs the extra `otel`.

Sampling, resource attributes and batching follow OpenTelemetry's own environment variables (OTEL_...).
"""

from __future__ import annotations

from node.errors import StartupError
from node.tracing import TRACEPARENT, Attributes, Kind, Span
from node.version import VERSION

try:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    raise StartupError("--otlp-endpoint needs OpenTelemetry; run: pip install 'rumormill[otel]'") from None

_w3c = TraceContextTextMapPropagator()
_KINDS: dict[Kind, trace.SpanKind] = {
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "internal": trace.SpanKind.INTERNAL,
}


class OtelTracer:
    """A Tracer that exports to an OTLP collector, in the background and in batches."""

    def __init__(self, endpoint: str, node_id: str) -> None:
        resource = Resource.create(
            {SERVICE_NAME: "rumormill", SERVICE_VERSION: VERSION, "service.instance.id": node_id}
        )
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("rumormill", VERSION)

    def start(self, name: str, parent: str, kind: Kind, attributes: Attributes) -> Span:
        context = _w3c.extract({TRACEPARENT: parent})
        return _Recorded(self._tracer.start_span(name, context, _KINDS[kind], attributes))

    def close(self) -> None:
        self._provider.shutdown()


class _Recorded:
    def __init__(self, span: trace.Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        _w3c.inject(carrier, trace.set_span_in_context(span))
        self.traceparent = carrier.get(TRACEPARENT, "")

    def event(self, name: str) -> None:
        self._span.add_event(name)

    def end(self, error: str, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)
        if error:
            self._span.set_status(trace.StatusCode.ERROR, error)
        self._span.end()
