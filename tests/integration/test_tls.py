"""Certificates of the fleet's servers: shown, asked for, made anew without a restart; and who speaks another way."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.orchestrator.main import open_fleet
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.extension_registry import load_parts
from swe_ai_fleet.runtime.channels import ChannelTls, open_channel, tls_fault
from swe_ai_fleet.runtime.installation.authority import KeyPair, new_certificate
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import InstallationLayout
from swe_ai_fleet.settings import Settings

WITHOUT_RAY = "kubernetes" if load_parts("executor") else "ray"
"""Sooner there, where the extension is installed."""


@pytest.fixture
async def layout(tmp_path: Path) -> InstallationLayout:
    await asyncio.to_thread(install, tmp_path / "one")
    return InstallationLayout(directory=tmp_path / "one")


def settings_of(layout: InstallationLayout, **changes: object) -> Settings:
    """A fleet that shows the orchestrator's certificate."""
    chosen: dict[str, object] = {
        "home": layout.directory / "home", "executor": WITHOUT_RAY, "listen": "127.0.0.1:0",
        "http_listen": "127.0.0.1:0", "context_listen": "127.0.0.1:0", "model_url": "http://127.0.0.1:9/v1",
        "tls_cert": layout.certificate("orchestrator"), "tls_key": layout.key("orchestrator"),
    }  # fmt: skip
    return Settings.model_validate(chosen | changes)


async def checked(address: str, tls: ChannelTls | None) -> str:
    """SERVING, or what the call said."""
    async with open_channel(address, tls, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


def client_pair(layout: InstallationLayout, directory: Path, name: str) -> ChannelTls:
    authority = KeyPair(certificate=layout.authority.read_text(), key=layout.authority_key.read_text())
    pair = new_certificate(authority, name, client=True)
    cert, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    cert.write_text(pair.certificate)
    key.write_text(pair.key)
    return ChannelTls(ca=layout.authority, cert=cert, key=key)


async def certificate_of(address: str) -> str:
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def spoken(address: str, layout: InstallationLayout, version: ssl.TLSVersion, ciphers: str) -> str:
    """What becomes of a client that speaks so."""
    asked = ssl.create_default_context(cafile=str(layout.authority))
    asked.set_ciphers(ciphers)
    asked.minimum_version = asked.maximum_version = version
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port), ssl=asked)
    except (ssl.SSLError, ConnectionError):
        return "refused"
    writer.close()
    return "taken"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_who_speaks_otherwise_is_told_and_a_new_certificate_is_shown_without_a_restart(
    layout: InstallationLayout, tmp_path: Path
) -> None:
    await asyncio.to_thread(install, tmp_path / "two")
    ours = ChannelTls(ca=layout.authority)
    async with open_fleet(settings_of(layout)) as fleet:
        assert await checked(fleet.address, ours) == "SERVING"
        for tls, words in (
            (None, "closed the connection"),
            (ChannelTls(ca=tmp_path / "two" / "tls" / "ca.pem"), "not signed"),
            (ChannelTls(ca=layout.authority, name="elsewhere.example"), "does not match this address"),
        ):
            fault = tls_fault(await checked(fleet.address, tls))
            assert fault is not None and words in fault[0], words
        places = (fleet.address, fleet.http.removeprefix("https://"))
        for version, ciphers, becomes in (
            (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0", "refused"),
            (ssl.TLSVersion.TLSv1_2, "AES128-SHA", "refused"),
            (ssl.TLSVersion.TLSv1_2, "ECDHE+AESGCM", "taken"),
        ):
            assert await spoken(places[1], layout, version, ciphers) == becomes, (version, ciphers)
        before = layout.certificate("orchestrator").read_text()
        assert [await certificate_of(place) for place in places] == [before, before]
        # Half of a rotation, or a broken one, changes nothing.
        layout.certificate("orchestrator").write_text("nonsense")
        assert [await certificate_of(place) for place in places] == [before, before]
        await asyncio.to_thread(install, layout.directory, rotate=("certificates",))
        after = layout.certificate("orchestrator").read_text()
        assert [await certificate_of(place) for place in places] == [after, after] != [before, before]
        assert await checked(fleet.address, ours) == "SERVING"


async def test_callers_show_a_certificate_where_an_authority_for_them_is_set(
    layout: InstallationLayout, tmp_path: Path
) -> None:
    await asyncio.to_thread(install, tmp_path / "two")
    known = client_pair(layout, tmp_path, "someone")
    stranger = client_pair(InstallationLayout(directory=tmp_path / "two"), tmp_path, "stranger")
    foreign = ChannelTls(ca=layout.authority, cert=stranger.cert, key=stranger.key)
    async with open_fleet(settings_of(layout, tls_client_ca=layout.authority, http_listen="off")) as fleet:
        assert await checked(fleet.address, known) == "SERVING"
        for tls in (ChannelTls(ca=layout.authority), foreign):
            assert await checked(fleet.address, tls) != "SERVING"
    for spoilt, field in (
        ({"tls_key": layout.key("nats")}, "tls_cert"),
        ({"tls_client_ca": known.key}, "tls_client_ca"),
    ):
        with pytest.raises(PreconditionFailed) as fault:
            async with open_fleet(settings_of(layout, **spoilt)):
                pass
        assert fault.value.field == field
