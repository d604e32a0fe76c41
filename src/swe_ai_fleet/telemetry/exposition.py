"""The metrics of a process, served to Prometheus on a separate port.

The process itself counts calls, requests and writes; sources add further figures.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from swe_ai_fleet.domain.errors import FleetError, PreconditionFailed
from swe_ai_fleet.settings import Settings

if TYPE_CHECKING:
    from aiohttp import web

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Bucket bounds for fast operations."""
Source = Callable[[], Awaitable[Iterable[Metric]]]
"""Returns the current figures for a scrape."""
SOURCE_SECONDS = 5.0
"""The time limit of one source: Prometheus waits ten seconds for all of them."""
_log = structlog.get_logger(__name__)


class Instruments:
    """Counters and histograms of one process. Labels have closed sets of values, never ids."""

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
        """Count an event that became durable."""
        self._append.observe(seconds)

    @contextmanager
    def grpc_open(self, service: str, method: str) -> Generator[None]:
        """Within the context, count a call as in flight."""
        gauge = self._grpc_open.labels(service, method)
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def grpc_ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Count a call that ended."""
        self._grpc.labels(service, method, code).inc()
        self._grpc_seconds.labels(service, method).observe(seconds)

    def http_ended(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count an answered request; `route` is the pattern of its path."""
        self._http.labels(method, route, str(status)).inc()
        self._http_seconds.labels(method, route).observe(seconds)


class Exposition:
    """The metrics of this process: its own counters, and those of its sources at each scrape."""

    def __init__(self) -> None:
        self.url = ""
        self._registry = CollectorRegistry()
        self.instruments = Instruments(self._registry)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._sources: dict[str, Source] = {}
        self._scraping = asyncio.Lock()

    @contextmanager
    def source(self, name: str, source: Source) -> Generator[None]:
        """Within the context, add a source; it replaces one of the same name."""
        before = self._sources.get(name)
        self._sources[name] = source
        try:
            yield
        finally:
            if before is None:
                del self._sources[name]
            else:
                self._sources[name] = before

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics in the format of an `Accept` header, and their content type.

        A source that fails or takes too long is left out, and `fleet_scrape_source_up` says so.
        """
        encode, content_type = choose_encoder(accept[:1_000])
        # One scrape at a time, so that frequent scrapes cannot multiply the work.
        async with self._scraping:
            sources = dict(self._sources)
            answers = await asyncio.gather(*(_collect_from(name, source) for name, source in sources.items()))
        up = GaugeMetricFamily("fleet_scrape_source_up", "Whether a source of metrics answered.", labels=["source"])
        families: list[Metric] = [up]
        for name, answer in zip(sources, answers, strict=True):
            up.add_metric([name], float(answer is not None))
            families += answer or ()
        # In a thread: there may be thousands of series.
        return await asyncio.to_thread(encode, cast("Any", _CombinedRegistry(self._registry, families))), content_type


class _CombinedRegistry:
    """A registry for an encoder, of own and sources' metrics."""

    def __init__(self, registry: CollectorRegistry, families: list[Metric]) -> None:
        self._registry = registry
        self._families = families

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            # The first sample of a series already shows its beginning; `_created` would double the series.
            family.samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
            yield family
        yield from self._families


async def _collect_from(name: str, source: Source) -> list[Metric] | None:
    try:
        async with asyncio.timeout(SOURCE_SECONDS):
            return list(await source())
    except (FleetError, TimeoutError) as error:
        _log.info("metrics.source_missing", source=name, reason=str(error))
    except Exception:  # noqa: BLE001 - the edge of the process: one source's fault must not hide the others
        _log.exception("metrics.source_fault", source=name)
    return None


PORTS = 16
"""Ports tried from the configured one on: one machine has several processes."""


@asynccontextmanager
async def open_exposition(listen: str) -> AsyncGenerator[Exposition]:
    """Serve `GET /metrics`, and nothing else, on `host:port` (port 0: any free one) until the context ends.

    If the port is taken, the next `PORTS` - 1 are tried, then any free one.

    Raises:
        PreconditionFailed: The address is malformed, or cannot be bound although it is not in use.
    """
    from aiohttp import web

    exposition = Exposition()

    async def metrics(request: web.Request) -> web.Response:
        body, content_type = await exposition.text(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    app = web.Application(client_max_size=1024)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=1.0)
    await runner.setup()
    try:
        host, _, port = listen.rpartition(":")
        if not port.isdigit():
            raise PreconditionFailed(
                f"{listen[:80]!r} is not a valid address", field="metrics_listen", hint="host:port"
            )
        ports = [number for number in range(int(port), int(port) + PORTS) if number < 65_536] if int(port) else []
        for number in (*ports, 0):
            try:
                await web.TCPSite(runner, host.strip("[]") or None, number).start()
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise PreconditionFailed(
                        f"cannot listen on {listen}: {error.strerror or error}", field="metrics_listen"
                    ) from error
        bound = cast("tuple[str, int]", runner.addresses[0])
        exposition.url = f"http://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}/metrics"
        if ports and bound[1] != ports[0]:
            _log.warning("metrics.port_taken", asked=listen, url=exposition.url)
        yield exposition
    finally:
        await runner.cleanup()


_MAX_BYTES = 1024 * 1024


CERTIFICATES = {
    "server": "tls_cert",
    "server_client_ca": "tls_client_ca",
    "client": "tls_client_cert",
    "client_ca": "tls_ca",
    "nats": "nats_cert",
    "nats_ca": "nats_ca",
}
"""The settings for certificate files, by the use of the certificate."""


def certificates(settings: Settings) -> Mapping[str, Path]:
    """The configured certificate files, by their use."""
    named = {use: getattr(settings, setting) for use, setting in CERTIFICATES.items()}
    return {use: path for use, path in named.items() if path is not None}


async def certificate_figures(files: Mapping[str, Path]) -> Iterable[Metric]:
    """The earliest expiry of the certificates in each file; an unreadable file counts as expired in 1970."""
    ends = GaugeMetricFamily(
        "fleet_certificate_expiry_timestamp_seconds",
        "When the first certificate of a file ends, in seconds since 1970; 0: it cannot be read.",
        labels=["use"],
    )
    for use, path in files.items():
        ends.add_metric([use], await asyncio.to_thread(expiry, path))
    return [ends]


def expiry(path: Path) -> float:
    """The earliest expiry of the certificates in a PEM file, in seconds since 1970; 0 for an unreadable file."""
    from cryptography import x509

    try:
        with path.open("rb") as file:
            chain = x509.load_pem_x509_certificates(file.read(_MAX_BYTES))
    except (OSError, ValueError):
        return 0.0
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)
