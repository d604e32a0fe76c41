"""What probes of Kubernetes are told: readiness, liveness, and on an address of their own without TLS."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.grpc_server import LIVENESS, serve_grpc

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def _asked(address: str, service: str = "") -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
    return answer.status


async def test_an_outage_makes_a_server_unready_and_leaves_it_alive(free_port: int) -> None:
    up = True

    async def ready() -> bool:
        return up

    probes = f"127.0.0.1:{free_port}"
    async with serve_grpc([], "127.0.0.1:0", "secret", ready, probe_listen=probes, readiness_seconds=0.01) as address:
        assert [await _asked(at) for at in (address, probes)] == [SERVING, SERVING]
        # Neither takes a token, and what the contract has is no secret either.
        async with grpc.aio.insecure_channel(address) as channel:
            listed = await health_pb2_grpc.HealthStub(channel).List(health_pb2.HealthListRequest(), timeout=5)
            assert {name: one.status for name, one in listed.statuses.items()} == {"": SERVING, LIVENESS: SERVING}
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            told = await reflection.ServerReflectionInfo(iter([asked])).read()
            assert "grpc.health.v1.Health" in [one.name for one in told.list_services_response.service]
        up = False
        async with asyncio.timeout(5):
            # One is told after the other.
            while [await _asked(at) for at in (address, probes)] != [NOT_SERVING, NOT_SERVING]:
                await asyncio.sleep(0.01)
        assert await _asked(probes, LIVENESS) == SERVING
        # Nothing else is to be had there: who asks for more needs the address with TLS and tokens.
        async with grpc.aio.insecure_channel(probes) as channel:
            reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
            asked = reflection_pb2.ServerReflectionRequest(list_services="")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await reflection.ServerReflectionInfo(iter([asked])).read()
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
