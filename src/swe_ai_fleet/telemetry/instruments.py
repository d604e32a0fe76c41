"""What a process counts itself, where nothing else has the figure: calls, requests, writes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of what ought to be fast."""


class Instruments:
    """Counters and histograms of one process. Labels are of closed sets; no id is among them.

    Args:
        registry: Has them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._grpc = Counter(
            "fleet_grpc_requests", "gRPC calls that ended.", ("service", "method", "code"), registry=registry
        )
        self._grpc_seconds = Histogram(
            "fleet_grpc_request_duration_seconds",
            "How long gRPC calls took; streams last as long as somebody listens.",
            ("service", "method"),
            registry=registry,
            buckets=SECONDS,
        )
        self._grpc_open = Gauge(
            "fleet_grpc_requests_in_flight", "gRPC calls under way.", ("service", "method"), registry=registry
        )
        self._http = Counter(
            "fleet_http_requests", "HTTP requests that were answered.", ("method", "route", "status"), registry=registry
        )
        self._http_seconds = Histogram(
            "fleet_http_request_duration_seconds",
            "How long HTTP requests took.",
            ("method", "route"),
            registry=registry,
            buckets=SECONDS,
        )
        self._append = Histogram(
            "fleet_log_append_duration_seconds",
            "How long an event took to be durable in the log.",
            registry=registry,
            buckets=(0.001, 0.0025, *SECONDS),
        )

    def appended(self, seconds: float) -> None:
        """An event became durable."""
        self._append.observe(seconds)

    @contextmanager
    def grpc_open(self, service: str, method: str) -> Generator[None]:
        """A call is under way within."""
        gauge = self._grpc_open.labels(service, method)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def grpc_ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """A call ended."""
        self._grpc.labels(service, method, code).inc()
        self._grpc_seconds.labels(service, method).observe(seconds)

    def http_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered; `route` is the pattern of its path."""
        self._http.labels(method, route, str(status)).inc()
        self._http_seconds.labels(method, route).observe(seconds)
