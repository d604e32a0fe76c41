"""Certificates of the fleet's servers: shown, asked for, made anew without a restart; and who speaks another way."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from httpx2 import AsyncClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.certificates import ServerTls, server_tls
from services.gateway.main import serve_http
from services.grpc_server import serve_grpc
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.runtime.channels import ChannelTls, open_channel, tls_fault
from swe_ai_fleet.runtime.installation.authority import KeyPair, new_certificate
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.runtime.installation.layout import Layout
from swe_ai_fleet.settings import Settings


@pytest.fixture
async def layout(tmp_path: Path) -> Layout:
    await asyncio.to_thread(install, tmp_path / "one")
    return Layout(directory=tmp_path / "one")


def shown(layout: Layout, *, client_ca: Path | None = None) -> ServerTls:
    return ServerTls(cert=layout.certificate("orchestrator"), key=layout.key("orchestrator"), client_ca=client_ca)


@asynccontextmanager
async def grpc_server(tls: ServerTls | None) -> AsyncIterator[str]:
    async def ready() -> bool:
        return True

    async with serve_grpc([], "127.0.0.1:0", "token", ready, tls=tls) as address:
        yield address


async def checked(address: str, tls: ChannelTls | None) -> str:
    """SERVING, or what the call said."""
    async with open_channel(address, tls, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.details() or ""
    return health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)


def client_pair(layout: Layout, directory: Path, name: str) -> tuple[Path, Path]:
    authority = KeyPair(certificate=layout.authority.read_text(), key=layout.authority_key.read_text())
    pair = new_certificate(authority, name, client=True)
    cert, key = directory / f"{name}.pem", directory / f"{name}-key.pem"
    cert.write_text(pair.certificate)
    key.write_text(pair.key)
    return cert, key


async def certificate_of(address: str) -> str:
    host, _, port = address.rpartition(":")
    return await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))


async def test_grpc_over_tls_and_what_it_says_to_who_speaks_otherwise(layout: Layout, tmp_path: Path) -> None:
    await asyncio.to_thread(install, tmp_path / "two")
    ours = ChannelTls(ca=layout.authority)
    async with grpc_server(shown(layout)) as address:
        assert await checked(address, ours) == "SERVING"
        faults = [
            tls_fault(await checked(address, tls))
            for tls in (
                None,
                ChannelTls(ca=tmp_path / "two" / "tls" / "ca.pem"),
                ChannelTls(ca=layout.authority, name="elsewhere.example"),
            )
        ]
    words = [fault[0] if fault else "" for fault in faults]
    assert [word.split()[1] for word in words] == ["server", "server's", "server's"]
    assert (
        "closed the connection" in words[0] and "not signed" in words[1] and "does not match this address" in words[2]
    )
    async with grpc_server(None) as address:
        fault = tls_fault(await checked(address, ours))
        assert fault is not None and "the server does not" in fault[0]
        assert await checked(address, None) == "SERVING"
    # Callers must show a certificate where an authority for them is set.
    stranger = client_pair(Layout(directory=tmp_path / "two"), tmp_path, "stranger")
    known = client_pair(layout, tmp_path, "someone")
    async with grpc_server(shown(layout, client_ca=layout.authority)) as address:
        assert await checked(address, ChannelTls(ca=layout.authority, cert=known[0], key=known[1])) == "SERVING"
        assert await checked(address, ChannelTls(ca=layout.authority)) != "SERVING"
        assert await checked(address, ChannelTls(ca=layout.authority, cert=stranger[0], key=stranger[1])) != "SERVING"


async def test_a_new_certificate_is_shown_without_a_restart(layout: Layout) -> None:
    app = Starlette(routes=[Route("/", lambda _: PlainTextResponse("here"))])
    ours = ChannelTls(ca=layout.authority)
    async with grpc_server(shown(layout)) as address, serve_http(app, "127.0.0.1:0", tls=shown(layout)) as url:
        places = (address, url.removeprefix("https://"))
        before = layout.certificate("orchestrator").read_text()
        assert [await certificate_of(place) for place in places] == [before, before]

        # Half of a rotation, or a broken one, changes nothing.
        layout.certificate("orchestrator").write_text("nonsense")
        assert [await certificate_of(place) for place in places] == [before, before]
        assert await checked(address, ours) == "SERVING"

        await asyncio.to_thread(install, layout.directory, rotate=("certificates",))
        after = layout.certificate("orchestrator").read_text()
        assert after != before
        assert [await certificate_of(place) for place in places] == [after, after]
        assert await checked(address, ours) == "SERVING"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_https_takes_tls_1_2_and_later_only(layout: Layout) -> None:
    async def scheme(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.url.scheme)

    app = Starlette(routes=[Route("/", scheme)])
    async with serve_http(app, "127.0.0.1:0", tls=shown(layout)) as url:
        context = ssl.create_default_context(cafile=str(layout.authority))
        async with AsyncClient(verify=context) as client:
            assert (await client.get(url)).text == "https"
        host, _, port = url.removeprefix("https://").rpartition(":")
        spoken: dict[str, str] = {}
        for version, ciphers in (
            (ssl.TLSVersion.TLSv1_1, "ALL:@SECLEVEL=0"),
            (ssl.TLSVersion.TLSv1_2, "AES128-SHA"),
            (ssl.TLSVersion.TLSv1_2, "ECDHE+AESGCM"),
            (ssl.TLSVersion.TLSv1_3, "DEFAULT"),
        ):
            asked = ssl.create_default_context(cafile=str(layout.authority))
            asked.set_ciphers(ciphers)
            asked.minimum_version = asked.maximum_version = version
            try:
                _, writer = await asyncio.open_connection(host, int(port), ssl=asked)
            except (ssl.SSLError, ConnectionError):
                spoken[f"{version.name} {ciphers}"] = "refused"
            else:
                spoken[f"{version.name} {ciphers}"] = "taken"
                writer.close()
    assert list(spoken.values()) == ["refused", "refused", "taken", "taken"]


async def test_a_certificate_that_cannot_be_used_is_told_at_the_start(layout: Layout, tmp_path: Path) -> None:
    nowhere, empty = tmp_path / "nowhere.pem", tmp_path / "empty.pem"
    empty.touch()
    ours = {"cert": layout.certificate("orchestrator"), "key": layout.key("orchestrator")}
    for spoilt, field in (
        ({"cert": nowhere}, "tls_cert"),
        ({"key": nowhere}, "tls_key"),
        ({"key": layout.key("nats")}, "tls_cert"),
        ({"client_ca": layout.settings}, "tls_client_ca"),
        ({"client_ca": empty}, "tls_client_ca"),
    ):
        with pytest.raises(PreconditionFailed) as fault:
            async with grpc_server(ServerTls(**ours | spoilt)):
                pass
        assert fault.value.field == field
    assert server_tls(Settings(home=tmp_path)) is None
