"""Who may call the orchestrator, how its server starts, is found and ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.grpc_server import serve_grpc
from swe_ai_fleet.domain.errors import PreconditionFailed
from swe_ai_fleet.domain.event import ExecutionFinished
from tests.documented import blocks
from tests.orchestrator_service import Service, deliberation, refusal
from tests.scripted_fleet import ScriptedRun

TOKEN = "a-token-for-tests"
SERVICE = "fleet.orchestrator.v1.OrchestratorService"


async def test_readiness_follows_what_the_fleet_stands_on():
    service = Service(ready=False)
    async with service.running():
        stub = health_pb2_grpc.HealthStub(service.channel)
        for name in ("", SERVICE):
            reply = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching = stub.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        service.ready = True
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
        service.ready = False
        assert (await watching.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watching.cancel()
        code, _, _ = await refusal(stub.Check(health_pb2.HealthCheckRequest(service="unknown")))
        assert code is grpc.StatusCode.NOT_FOUND
        assert (await service.stub.GetStatus(pb.GetStatusRequest())).uptime_seconds >= 0


async def test_stopping_ends_the_calls_and_not_the_executions_and_a_port_that_is_taken_is_said_so():
    service = Service()
    service.fleet.default = ScriptedRun(after=asyncio.Event())
    async with service.running():
        with pytest.raises(PreconditionFailed) as refused:
            async with serve_grpc([], service.address, None, service.is_ready):
                pass
        assert service.address in str(refused.value)
        waiting = asyncio.ensure_future(service.stub.Deliberate(deliberation()))
        await service.fleet.started(3)
    with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
        await waiting
    assert not any(isinstance(event.body, ExecutionFinished) for event in service.log.events)


GRPCURL = f"""#!{sys.executable}
# Stands in for grpcurl where there is none: it makes the same calls, by buf.
import argparse, subprocess, sys
known = argparse.ArgumentParser()
known.add_argument("-plaintext", action="store_true", required=True)
known.add_argument("-H", action="append", default=[])
known.add_argument("-d", default="{{}}")
known.add_argument("address")
known.add_argument("method")
given = known.parse_args()
asked = ["buf", "curl", "--http2-prior-knowledge", "--protocol=grpc", "--reflect"]
headers = [f"--header={{header}}" for header in given.H]
if given.method == "list":
    sys.exit(subprocess.call([*asked, "--list-services", f"http://{{given.address}}"]))
sys.exit(subprocess.call([*asked, *headers, "--data", given.d, f"http://{{given.address}}/{{given.method}}"]))
"""


async def test_the_documented_commands_of_foreign_clients(tmp_path: Path):
    [(_, block)] = blocks("docs/api.md")
    home, programs = tmp_path / "state/swe-ai-fleet", tmp_path / "bin"
    home.mkdir(parents=True)
    programs.mkdir()
    (home / "token").write_text(TOKEN)
    if shutil.which("grpcurl") is None:
        (programs / "grpcurl").write_text(GRPCURL)
        (programs / "grpcurl").chmod(0o755)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:{programs}"
    async with Service().running(TOKEN) as service:
        script = block.replace("127.0.0.1:50055", service.address).replace("~/.local/state", str(tmp_path / "state"))
        process = await asyncio.create_subprocess_exec(
            *("bash", "-euc", script),
            env={**os.environ, "PATH": path},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out = (await process.communicate())[0].decode()
    assert process.returncode == 0, out
    for said in ("liveness", SERVICE, "SERVING"):
        assert said in out
    assert out.count('"stats"') == 2, out
