"""What `fleet doctor` says of each part, and what it advises."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from swe_ai_fleet.adapters.jetstream import Ping, StreamUsage
from swe_ai_fleet.cli.findings import Finding, Health
from swe_ai_fleet.cli.service_findings import access, judged, nats, traces, transport, ways
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from tests.access_world import Authority
from tests.trace_collector import TraceCollector

PING = Ping(ok=True, version="2.12.1", latency_ms=0.5)


def _certificate(directory: Path, *, days: int) -> tuple[Path, Path]:
    files = directory / "cert.pem", directory / "key.pem"
    for file, content in zip(files, Authority().issue("localhost", days=days), strict=True):
        file.write_bytes(content)
    return files


def _fault(finding: Finding, *words: str) -> None:
    """It is a fault that names its cause and its mend."""
    assert finding.state is Health.FAULT, finding
    assert finding.cause and finding.mend
    for word in words:
        assert word in f"{finding.cause} | {finding.mend}"


async def test_nats_is_tried(nats_server: EmbeddedNats, tmp_path: Path) -> None:
    assert (await nats(Settings(home=tmp_path))).state is Health.ABSENT
    address = nats_server.address
    settings = Settings(nats_url=address.url, nats_token=address.token)
    found = await nats(settings)
    assert found.state is Health.OK and found.version.startswith("2.")
    async with connect_log(settings, name="clock") as log:
        await log.ensure_streams()
        told = await log.clock()
    assert told is not None and abs(told - datetime.now(UTC)) < timedelta(seconds=30)
    _fault(await nats(Settings(nats_url="nats://127.0.0.1:9")), "127.0.0.1:9", "reachable")
    _fault(await nats(Settings(nats_url=address.url.replace(address.token, "wrong"))), "refused", "token")
    # What it says of itself is judged.
    assert judged(PING, {}, 0.2).state is Health.OK
    _fault(judged(Ping(ok=True, version="2.9.25", latency_ms=1), {}, 0.0), "too old", "2.10")
    _fault(judged(PING, {}, 42.0), "42 s ahead", "NTP")
    _fault(judged(PING, {}, -42.0), "42 s behind")
    full = {"AGENT_EVENTS": StreamUsage(messages=1, bytes=95, max_bytes=100)}
    _fault(judged(PING, full, 0.0), "AGENT_EVENTS", "FLEET_EVENT_DAYS")
    assert judged(PING, {"AGENT_EVENTS": StreamUsage(messages=1, bytes=95, max_bytes=0)}, None).state is Health.OK


def test_certificates_are_tried(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, days=100)
    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    (found,) = transport(Settings(tls_cert=cert, tls_key=key))
    assert found.state is Health.OK and ("99 days" in found.cause or "100 days" in found.cause)
    _fault(transport(Settings(tls_cert=cert))[0], "needs its key")
    _fault(transport(Settings(tls_cert=broken, tls_key=key))[0])
    _fault(transport(Settings(nats_ca=broken))[0], "FLEET_NATS_CA")
    assert [one.part for one in transport(Settings(nats_cert=cert, tls_cert=None))] == ["tls: nats"]
    assert transport(Settings())[0].state is Health.ABSENT
    cert, key = _certificate(tmp_path, days=3)
    assert "renew" in transport(Settings(tls_cert=cert, tls_key=key))[0].mend
    cert, key = _certificate(tmp_path, days=-3)
    _fault(transport(Settings(nats_cert=cert))[0], "has ended", "renew")


async def test_a_collector_is_tried_and_its_password_not_told() -> None:
    assert (await traces(Settings())).state is Health.ABSENT
    async with TraceCollector(status=404) as collector:
        _fault(await traces(Settings(otlp_endpoint=collector.url)), "404")
    async with TraceCollector() as collector:
        place = collector.url.replace("://", "://me:hush-hush@")
        found = await traces(Settings(otlp_endpoint=place))
    assert found.state is Health.OK
    gone = await traces(Settings(otlp_endpoint=place))
    _fault(gone, "OTLP")
    for one in (found, gone, await traces(Settings(otlp_endpoint="ftp://me:hush-hush@127.0.0.1"))):
        assert "hush" not in str(one) and "127.0.0.1" in one.cause
    _fault(await traces(Settings(otlp_endpoint="file:///etc/passwd")), "no http")


def test_the_access_file_is_tried_and_tokens_that_others_can_read_on_the_way_are_told(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    assert access(Settings()).state is Health.ABSENT
    _fault(access(Settings(access_file=file)), str(file))
    file.write_text("[tenants.acme]\n")
    file.chmod(0o600)
    assert access(Settings(access_file=file)).state is Health.OK
    file.chmod(0o600 | stat.S_IWOTH)
    _fault(access(Settings(access_file=file)), "others may write", "chmod")
    settings = Settings(
        orchestrator_url="grpc://one.example:1",
        context_url="two.example:2",
        nats_url="nats://user:secret@three.example:4222, nats://127.0.0.1:4222, tls://four.example",
        nats_token="token",
    )
    found = ways(settings, "127.0.0.1:50055")
    told = ["grpc://one.example:1", "two.example:2", "nats://three.example:4222"]
    assert [one.cause.split()[0] for one in found] == told
    assert all(one.state is Health.ABSENT and one.mend for one in found)
    assert ways(Settings(), "") == []
    safe = settings.model_copy(update={"tls_ca": Path("ca.pem"), "nats_ca": Path("ca.pem")})
    assert ways(safe, "a.example:1")[1:] == []
