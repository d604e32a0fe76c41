"""What `fleet doctor` finds out about NATS: whether JetStream is there, how full it is, whether clocks agree."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime

from swe_ai_fleet.adapters.jetstream import JetStream, Ping, StreamUsage
from swe_ai_fleet.cli.finding import Finding, Health, faulty
from swe_ai_fleet.domain.errors import FleetError, NotFound
from swe_ai_fleet.settings import Settings

OLDEST = (2, 10)
MOST_SKEW_SECONDS = 5.0
"""Leases and orders of events bear this much; tokens that end, and people who read times, do not bear much more."""
FULL = 0.9
_SECONDS = 15.0
_PATIENCE_SECONDS = 3.0


async def nats(settings: Settings) -> Finding:
    """The server that settings name, or the one that runs under `home`; without either one is started by `fleet up`."""
    from swe_ai_fleet.runtime.factories import connect_log
    from swe_ai_fleet.runtime.nats_server import read_address

    if not settings.nats_url:
        try:
            own = read_address(settings.home / "nats")
        except FleetError:
            cause = "none is configured; `fleet up` starts one of its own"
            return Finding(part="nats", state=Health.ABSENT, cause=cause)
        settings = settings.model_copy(update={"nats_url": own.url, "nats_token": own.token})
    try:
        async with (
            asyncio.timeout(_SECONDS),
            connect_log(settings, name="doctor", patience=_PATIENCE_SECONDS) as log,
        ):
            ping = await log.ping()
            if not ping.ok:
                mend = "start the server with JetStream (nats-server -js), or enable it for the account"
                return Finding(part="nats", state=Health.FAULT, version=ping.version, cause=ping.error, mend=mend)
            return judged(ping, await _usage(log), await _skew(log))
    except (FleetError, TimeoutError) as error:
        return faulty("nats", error, "see FLEET_NATS_URL", seconds=_SECONDS)


def judged(ping: Ping, usage: Mapping[str, StreamUsage], skew_seconds: float | None) -> Finding:
    """What to make of a server that answers. `skew_seconds`: by how much its clock is ahead; None: it does not say."""
    numbers = tuple(int(part) for part in ping.version.split(".")[:2] if part.isdigit())
    told = f"JetStream answers in {ping.latency_ms:.1f} ms, {sum(one.bytes for one in usage.values()) / 2**20:.0f} MiB"
    if numbers and numbers < OLDEST:
        cause, mend = "JetStream is too old for what streams are asked to keep", "NATS 2.10 or newer"
        return Finding(part="nats", state=Health.FAULT, version=ping.version, cause=cause, mend=mend)
    full = [name for name, one in usage.items() if one.max_bytes and one.bytes > FULL * one.max_bytes]
    if full:
        cause = f"nearly full: {', '.join(full)}; what is full refuses events"
        mend = "raise the limit, shorten FLEET_EVENT_DAYS, or back up and remove old executions"
        return Finding(part="nats", state=Health.FAULT, version=ping.version, cause=cause, mend=mend)
    if skew_seconds is not None and abs(skew_seconds) > MOST_SKEW_SECONDS:
        way = "ahead of" if skew_seconds > 0 else "behind"
        cause = f"its clock is {abs(skew_seconds):.0f} s {way} this machine's"
        mend = "let both machines keep their clocks by NTP"
        return Finding(part="nats", state=Health.FAULT, version=ping.version, cause=cause, mend=mend)
    return Finding(part="nats", state=Health.OK, version=ping.version, cause=told)


async def _usage(log: JetStream) -> Mapping[str, StreamUsage]:
    try:
        return await log.usage()
    except NotFound:
        # Nothing has started there yet.
        return {}


async def _skew(log: JetStream) -> float | None:
    began = datetime.now(UTC)
    server = await log.clock()
    if server is None:
        return None
    now = datetime.now(UTC)
    return (server - (began + (now - began) / 2)).total_seconds()
