"""Findings of `fleet doctor` about services: NATS, certificates, the access file, the collector of traces.

For NATS: whether JetStream is enabled, how full it is, and whether clocks agree.
"""

from __future__ import annotations

import asyncio
import base64
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import unquote, urlsplit

from swe_ai_fleet.adapters.jetstream import JetStream, Ping, StreamUsage
from swe_ai_fleet.adapters.jetstream.streams import ALL
from swe_ai_fleet.cli.findings import DoctorFinding, absent, broken, faulty, ok
from swe_ai_fleet.domain.errors import FleetError, NotFound
from swe_ai_fleet.domain.fleet_status import NEARLY_FULL
from swe_ai_fleet.domain.text import counted
from swe_ai_fleet.settings import Settings, listed

OLDEST = (2, 10)
MOST_SKEW_SECONDS = 5.0
"""Leases and the order of events tolerate this; expiring tokens, and people who read times, tolerate little more."""
_NATS_SECONDS = 15.0
_TIMEOUT_SECONDS = 3.0
SOON_SECONDS = 14 * 86_400.0
_TRACES_SECONDS = 5.0
_DAY = 86_400.0


async def nats(settings: Settings) -> DoctorFinding:
    """The server in the settings, or the one that runs under `home`; without either `fleet up` starts one."""
    from swe_ai_fleet.runtime.factories import connect_log
    from swe_ai_fleet.runtime.nats_server import read_address

    if not settings.nats_url:
        try:
            own = read_address(settings.home / "nats")
        except FleetError:
            return absent("nats", "none is configured; `fleet up` starts one of its own")
        settings = settings.model_copy(update={"nats_url": own.url, "nats_token": own.token})
    try:
        async with (
            asyncio.timeout(_NATS_SECONDS),
            connect_log(settings, name="doctor", timeout=_TIMEOUT_SECONDS) as log,
        ):
            ping = await log.ping()
            if not ping.ok:
                mend = "start the server with JetStream (nats-server -js), or enable it for the account"
                return broken("nats", ping.error, mend, version=ping.version)
            return nats_finding(ping, await _usage(log), await _skew(log))
    except (FleetError, TimeoutError) as error:
        return faulty("nats", error, "see FLEET_NATS_URL", seconds=_NATS_SECONDS)


def nats_finding(ping: Ping, usage: Mapping[str, StreamUsage], skew_seconds: float | None) -> DoctorFinding:
    """The finding for a server that answers. `skew_seconds`: how far its clock is ahead; None: unknown."""
    numbers = tuple(int(part) for part in ping.version.split(".")[:2] if part.isdigit())
    whole = usage.get(ALL, StreamUsage(messages=0, bytes=0, max_bytes=0))
    summary = f"JetStream answers in {ping.latency_ms:.1f} ms, {whole.bytes / 2**20:.0f} MiB"
    if numbers and numbers < OLDEST:
        cause, mend = "JetStream is too old for the configuration of the streams", "NATS 2.10 or newer"
        return broken("nats", cause, mend, version=ping.version)
    full = [
        name for name, stream in usage.items() if stream.max_bytes and stream.bytes > NEARLY_FULL * stream.max_bytes
    ]
    if full:
        cause = f"nearly full: {', '.join(full)}; no task is accepted, and full streams refuse events"
        mend = "raise the limit, shorten FLEET_EVENT_DAYS, or back up and remove old executions"
        return broken("nats", cause, mend, version=ping.version)
    if skew_seconds is not None and abs(skew_seconds) > MOST_SKEW_SECONDS:
        direction = "ahead of" if skew_seconds > 0 else "behind"
        cause = f"its clock is {abs(skew_seconds):.0f} s {direction} this machine's"
        return broken("nats", cause, "let both machines keep their clocks by NTP", version=ping.version)
    return ok("nats", summary, version=ping.version)


async def _usage(log: JetStream) -> Mapping[str, StreamUsage]:
    try:
        return await log.usage()
    except NotFound:
        # No fleet has created its streams yet.
        return {}


async def _skew(log: JetStream) -> float | None:
    began = datetime.now(UTC)
    server = await log.clock()
    if server is None:
        return None
    now = datetime.now(UTC)
    return (server - (began + (now - began) / 2)).total_seconds()


def transport(settings: Settings) -> list[DoctorFinding]:
    """Whether certificates can be used, and when they expire."""
    from services.certificates import Certificates, server_tls
    from swe_ai_fleet.telemetry.exposition import CERTIFICATES, certificates, expiry

    try:
        tls = server_tls(settings)
        if tls is not None:
            Certificates(tls)
    except FleetError as error:
        return [faulty("tls", error, "see FLEET_TLS_CERT and FLEET_TLS_KEY")]
    files = certificates(settings)
    if not files:
        if settings.loopback:
            return [absent("tls", "none; nobody else can listen on loopback")]
        cause = f"{settings.listen} is served without TLS: tokens can be read on the way"
        return [absent("tls", cause, "`fleet init`, or FLEET_TLS_CERT and FLEET_TLS_KEY, or a proxy that speaks TLS")]
    now, findings = time.time(), list[DoctorFinding]()
    for use, path in files.items():
        part, remaining = f"tls: {use.replace('_', ' ')}", expiry(path) - now
        days = f"{max(0.0, remaining) / _DAY:.0f} days"
        if remaining < -now + 1:
            mend = f"a PEM file that this user may read, in FLEET_{CERTIFICATES[use].upper()}"
            findings.append(broken(part, f"{path} has no certificate", mend))
        elif remaining <= 0:
            findings.append(
                broken(part, f"the certificate in {path} has expired", "renew it; servers reload it by themselves")
            )
        else:
            mend = "renew it soon; servers reload it by themselves" if remaining < SOON_SECONDS else ""
            findings.append(ok(part, f"{path}, valid for another {days}", mend))
    return findings


def unprotected_calls(settings: Settings, server: str) -> list[DoctorFinding]:
    """The remote services to which tokens are sent unencrypted."""
    from swe_ai_fleet.runtime.channels import is_local, sends_token_unprotected

    called = dict.fromkeys(url for url in (server, settings.orchestrator_url, settings.context_url) if url)
    clear_addresses = {
        url: "FLEET_TLS_CA, or grpcs:// before it" for url in called if sends_token_unprotected(settings, url)
    }
    if settings.nats_token and not settings.nats_nkey_file and settings.nats_ca is None and settings.nats_cert is None:
        nats_urls = [urlsplit(url if "://" in url else f"nats://{url}") for url in listed(settings.nats_url)]
        unprotected = [url for url in nats_urls if url.scheme == "nats" and not is_local(url.hostname or "")]
        clear_addresses |= {
            f"nats://{url.netloc.rpartition('@')[2]}": "tls:// and FLEET_NATS_CA" for url in unprotected
        }
    return [
        absent("tls: calls", f"{address} is called without TLS: the token can be read on the way", mend)
        for address, mend in clear_addresses.items()
    ]


def access(settings: Settings) -> DoctorFinding:
    """Whether the access file is valid."""
    from services.access.access_file import read_access

    if settings.access_file is None:
        cause = "no access file: one token lets everybody do everything"
        mend = "" if settings.loopback else "FLEET_ACCESS_FILE, see `fleet access --help`"
        return absent("access", cause, mend)
    try:
        read = read_access(settings.access_file)
    except FleetError as error:
        return faulty("access", error, f"correct {settings.access_file}")
    if settings.access_file.stat().st_mode & 0o022:
        cause = f"other users may write {settings.access_file}, and so grant access to anyone"
        return broken("access", cause, f"chmod go-w {settings.access_file}")
    return ok(
        "access",
        f"{settings.access_file}: {counted(len(read.tenants), 'tenant')}, {counted(len(read.tokens), 'token')}",
    )


async def traces(settings: Settings) -> DoctorFinding:
    """Whether the collector accepts spans."""
    if not settings.otlp_endpoint:
        return absent("traces", "none are sent", "FLEET_OTLP_ENDPOINT, if they are wanted")
    from opentelemetry.util.re import parse_env_headers

    from swe_ai_fleet.adapters.openai_model.faults import public_url

    endpoint = settings.otlp_endpoint
    if not endpoint.startswith(("http://", "https://")):
        fault, shown = "no http:// or https:// URL", endpoint[:80].rpartition("@")[2]
    else:
        # As the exporter reads them.
        headers = dict(parse_env_headers(os.environ.get("OTEL_EXPORTER_OTLP_HEADERS", ""), liberal=True))
        user = urlsplit(endpoint).netloc.rpartition("@")[0]
        if user:
            headers["authorization"] = f"Basic {base64.b64encode(unquote(user).encode()).decode()}"
        shown = public_url(endpoint)
        fault = await asyncio.to_thread(_refusal, shown, headers)
    if fault:
        mend = "start the collector with its OTLP/HTTP receiver, or correct FLEET_OTLP_ENDPOINT (its base URL)"
        return broken("traces", f"{shown}: {fault}", mend)
    return ok("traces", f"{shown} accepts them")


def _refusal(endpoint: str, headers: Mapping[str, str]) -> str:
    """Why a collector refuses an empty message; empty where it accepts it."""
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked
        f"{endpoint}/v1/traces", data=b"", headers={"Content-Type": "application/x-protobuf", **headers}
    )
    try:
        with urllib.request.urlopen(request, timeout=_TRACES_SECONDS):  # noqa: S310
            return ""
    except urllib.error.HTTPError as error:
        return f"it answers {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(error)
