"""When the certificates that a process shows and trusts end, for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from swe_ai_fleet.settings import Settings

_MOST_BYTES = 1024 * 1024


def certificates(settings: Settings) -> Mapping[str, Path]:
    """The certificate files that settings name, by what they are for."""
    named = {
        "server": settings.tls_cert,
        "server_client_ca": settings.tls_client_ca,
        "client": settings.tls_client_cert,
        "client_ca": settings.tls_ca,
        "nats": settings.nats_cert,
        "nats_ca": settings.nats_ca,
    }
    return {use: path for use, path in named.items() if path is not None}


async def certificate_figures(files: Mapping[str, Path]) -> Iterable[Metric]:
    """The end of each file's certificate that ends first; a file that cannot be read counts as ended in 1970."""
    ends = GaugeMetricFamily(
        "fleet_certificate_expiry_timestamp_seconds",
        "When the first certificate of a file ends, in seconds since 1970; 0: it cannot be read.",
        labels=["use"],
    )
    for use, path in files.items():
        ends.add_metric([use], await asyncio.to_thread(expiry, path))
    return [ends]


def expiry(path: Path) -> float:
    """When the first certificate of a PEM file ends, in seconds since 1970; 0 where it cannot be read."""
    from cryptography import x509

    try:
        with path.open("rb") as file:
            chain = x509.load_pem_x509_certificates(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return 0.0
    return min(certificate.not_valid_after_utc.timestamp() for certificate in chain)
