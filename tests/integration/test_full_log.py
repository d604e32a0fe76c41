"""A NATS that is nearly full: nothing new is accepted, what runs goes on to its end, and whoever asks is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.jetstream import StreamSettings
from swe_ai_fleet.cli.findings import Health
from swe_ai_fleet.cli.service_findings import nats
from swe_ai_fleet.orchestrator.quotas import Quotas
from swe_ai_fleet.runtime.fleet_view import LogRoom
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.settings import Settings
from tests.integration.test_nats import connected
from tests.orchestrator_service import Service, deliberation, field_named, refusal
from tests.scripted_fleet import ScriptedRun

MOST = 4 * 2**20


async def test_what_is_nearly_full_takes_nothing_new_and_lets_what_runs_end(tmp_path: Path) -> None:
    settings, limited = Settings(home=tmp_path, blob_bytes=MOST), "OBJ_agent-blobs"
    server = EmbeddedNats(tmp_path / "nats")
    async with server, connected(server.address, settings=StreamSettings(max_blob_bytes=MOST)) as log:
        service = Service(log=log, quotas=Quotas(kept=LogRoom(log, seconds=0.0).storage))
        end = asyncio.Event()
        service.fleet.default = ScriptedRun(after=end)
        async with service.running():
            running = asyncio.ensure_future(service.stub.Deliberate(deliberation("before", num_agents=1)))
            await service.fleet.started(1)
            assert (await nats(settings)).state is Health.OK
            await log.put("default", "other", b"x" * int(0.92 * MOST), "application/octet-stream")
            code, told, details = await refusal(service.stub.Deliberate(deliberation("after")))
            assert code is grpc.StatusCode.RESOURCE_EXHAUSTED and limited in told
            assert field_named(details) == "nats"
            finding = await nats(settings)
            assert finding.state is Health.FAULT and limited in finding.cause
            end.set()
            assert (await running).status == pb.DELIBERATION_STATUS_COMPLETED
