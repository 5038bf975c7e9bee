"""This node's Prometheus metrics; names and labels are a contract (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

TTFT_BUCKETS_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ITL_BUCKETS_SECONDS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56)

LabelledValues = Mapping[tuple[str, ...], float]


class _Live(Collector):
    """A metric that is read where it lives, at scrape time."""

    def __init__(
        self,
        family: Callable[[], CounterMetricFamily | GaugeMetricFamily],
        read: Callable[[], LabelledValues],
    ):
        self._family = family
        self._read = read

    def collect(self) -> Iterable[Metric]:
        family = self._family()
        for labels, value in self._read().items():
            family.add_metric(labels, value)
        yield family


class Metrics:
    """One registry per node, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "rumormill_requests_total",
            "Requests that entered here, by outcome and by where they were answered",
            ["outcome", "route"],
            registry=self.registry,
        )
        self.ttft = Histogram(
            "rumormill_ttft_seconds",
            "Time to first token of requests that entered here",
            buckets=TTFT_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.itl = Histogram(
            "rumormill_itl_seconds",
            "Time between two tokens of an answer that is streamed from here",
            buckets=ITL_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self.moves = Counter(
            "rumormill_moves_total",
            "Times that a request which entered here went on to another node, by cause",
            ["cause"],
            registry=self.registry,
        )
        self.prompt_tokens = Counter(
            "rumormill_prompt_tokens_total",
            "Prompt tokens of requests that entered here, cached or computed where they were answered",
            ["source"],
            registry=self.registry,
        )
        self.forwarded_here = Counter(
            "rumormill_forwarded_here_total",
            "Requests that peers sent here, by whether this node took them or answered BUSY",
            ["outcome"],
            registry=self.registry,
        )
        self.predicted_cached_tokens = Counter(
            "rumormill_predicted_cached_tokens_total",
            "Prompt tokens expected to be cached when the route was chosen",
            registry=self.registry,
        )

    def gauge(self, name: str, text: str, labels: list[str], read: Callable[[], LabelledValues]) -> None:
        """A gauge whose values are read at every scrape."""
        self.registry.register(_Live(lambda: GaugeMetricFamily(name, text, labels=labels), read))

    def counter(self, name: str, text: str, labels: list[str], read: Callable[[], LabelledValues]) -> None:
        """A counter that something else counts, read at every scrape."""
        self.registry.register(_Live(lambda: CounterMetricFamily(name, text, labels=labels), read))

    def text(self) -> bytes:
        """The Prometheus exposition format."""
        return generate_latest(self.registry)
