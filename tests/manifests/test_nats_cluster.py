"""Three NATS servers with the configuration and secrets that a cluster gets: TLS between them, accounts, R3 streams."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from swe_ai_fleet.domain.errors import FleetError
from swe_ai_fleet.domain.event import CancelRequested, Writer
from swe_ai_fleet.runtime.factories import connect_log
from swe_ai_fleet.runtime.installation.installing import install
from swe_ai_fleet.settings import Settings
from tests.manifests.objects import built, environment, found, pods

SERVERS = 3


def _ports(count: int) -> list[int]:
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _config(number: int, ports: list[int], directory: Path, installation: Path) -> Path:
    """That of the overlay `production`, with this machine's ports, paths and addresses in place of a cluster's."""
    text: str = found(built("production"), "ConfigMap", "fleet-nats")["data"]["nats.conf"]
    clients, peers, monitors = ports[:SERVERS], ports[SERVERS : 2 * SERVERS], ports[2 * SERVERS :]
    changes = {
        "port: 4222": f"host: 127.0.0.1\nport: {clients[number]}",
        "port: 6222\n": f"host: 127.0.0.1\nport: {peers[number]}\n",
        "http_port: 8222": f"http: 127.0.0.1:{monitors[number]}",
        "/tmp/nats.pid": str(directory / f"{number}.pid"),
        "store_dir: /data": f"store_dir: {directory}/data-{number}",
        "/etc/nats/tls/tls.crt": str(installation / "tls" / "nats.pem"),
        "/etc/nats/tls/tls.key": str(installation / "tls" / "nats-key.pem"),
        "/etc/nats/tls/ca.crt": str(installation / "tls" / "ca.pem"),
        "../auth/accounts.conf": "accounts.conf",
    }
    for one, port in enumerate(peers):
        changes[f"fleet-nats-{one}.fleet-nats-peers.fleet.svc:6222"] = f"127.0.0.1:{port}"
    # The names first: their ports are among the others.
    for old, new in sorted(changes.items(), key=lambda change: -len(change[0])):
        assert old in text, old
        text = text.replace(old, new)
    place = directory / f"server-{number}"
    place.mkdir()
    (place / "accounts.conf").write_text((installation / "nats" / "accounts.conf").read_text())
    (place / "nats.conf").write_text(text)
    return place / "nats.conf"


@asynccontextmanager
async def _server(number: int, config: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    program = Path(sys.executable).with_name("nats-server")
    objects = built("production")
    (pod,) = pods([found(objects, "StatefulSet", "fleet-nats")])
    told = os.environ | environment(objects, pod, pod.containers[0]) | {"POD_NAME": f"fleet-nats-{number}"}
    process = await asyncio.create_subprocess_exec(program, "-c", config, env=told, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _probed(monitors: list[int]) -> None:
    """Every probe of the Pod says yes at every server, once their copies have caught up."""
    (pod,) = pods([found(built("production"), "StatefulSet", "fleet-nats")])
    server = pod.containers[0]
    paths = [server[kind]["httpGet"]["path"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert paths[0] == "/healthz"
    async with aiohttp.ClientSession() as client, asyncio.timeout(30):
        for url in [f"http://127.0.0.1:{port}{path}" for path in paths for port in monitors]:
            while True:
                async with client.get(url) as reply:
                    if reply.status == 200:
                        break
                await asyncio.sleep(0.2)


@pytest.mark.slow
async def test_a_cluster_keeps_streams_on_all_three_and_outlives_one(tmp_path: Path) -> None:
    installation = tmp_path / "installation"
    install(installation)
    ports = _ports(3 * SERVERS)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(_server(number, _config(number, ports, tmp_path, installation)))
            for number in range(SERVERS)
        ]
        tls = {
            "nats_ca": installation / "tls" / "ca.pem",
            "nats_nkey_file": installation / "nats" / "orchestrator.nkey",
        }
        limits = {
            name.removeprefix("FLEET_").lower(): int(value)
            for name, value in found(built("production"), "ConfigMap", "fleet-settings")["data"].items()
            if name.endswith("_BYTES")
        }
        assert limits.keys() == {"event_bytes", "result_bytes", "blob_bytes"}
        urls = ",".join(f"tls://127.0.0.1:{port}" for port in ports[:SERVERS])
        settings = Settings(nats_url=urls, stream_replicas=SERVERS, **tls, **limits)
        async with connect_log(settings, name="test", timeout=30, waits=30) as log:
            async with asyncio.timeout(60):
                while True:
                    try:
                        await log.ensure_streams()
                        break
                    except FleetError:
                        # Until the three have chosen a leader.
                        await asyncio.sleep(0.2)
            info = await log.connection.api("STREAM.INFO.AGENT_EVENTS", timeout=10)
            assert info["config"]["num_replicas"] == SERVERS and info["config"]["allow_atomic"]
            assert len(info["cluster"]["replicas"]) == SERVERS - 1
            assert (await log.usage())["AGENT_EVENTS"].max_bytes == limits["event_bytes"]
            await _probed(ports[2 * SERVERS :])
            leader = servers[int(info["cluster"]["leader"].removeprefix("fleet-nats-"))]
            who = Writer(tenant="default", execution_id="e", task_id="t", agent_id="a")
            async with log.journal(who, fresh=True) as journal:
                for number in range(100):
                    journal.post(CancelRequested(reason=str(number)))
                    if number == 50:
                        leader.kill()
                    if number % 5 == 0:
                        await journal.flush()
            await leader.wait()
            events = [stored.event.body async for stored in log.read("default", "e")]
            assert events == [CancelRequested(reason=str(number)) for number in range(100)]
            assert log.connection.batches
            store = await log.bucket("cluster-test")
            await store.put("key", b"kept")
            entry = await store.get("key")
            assert entry is not None and entry.value == b"kept"
        # Who shows no nkey of the fleet's is turned away, and so is who has no certificate to trust.
        with pytest.raises(FleetError):
            async with connect_log(settings.model_copy(update={"nats_nkey_file": None}), name="x", timeout=2) as log:
                await log.ensure_streams()
