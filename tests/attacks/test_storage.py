"""What a tenant stores must not fill the fleet: a checkpoint takes the place of the one before it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.jetstream import Credentials, JetStream
from swe_ai_fleet.agents.resumption import BUNDLE_MEDIA_TYPE, WorkspaceKeeper
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.command import Command
from swe_ai_fleet.domain.errors import NotFound, ResourceExhausted
from swe_ai_fleet.domain.event import WorkspaceCheckpointed, WorkspaceNotKept, Writer
from swe_ai_fleet.domain.owner import Owner
from swe_ai_fleet.domain.task import EnvironmentSpec
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.sandbox import Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.tools.audit import AuditTrail
from tests.confinement import CONFINED
from tests.environments import make_provider, pin

MIB = 1024**2
REWRITE = 16 * MIB
TIMES = 8
OWNER = Owner(tenant="acme", execution_id="filling")


@pytest.fixture
async def log(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=Credentials(token=address.token), patience=10.0) as opened:
        await opened.ensure_streams()
        yield opened


async def held(log: JetStream) -> int:
    """The bytes of all blobs in NATS."""
    return (await log.usage())["OBJ_agent-blobs"].bytes


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


@pytest.mark.parametrize("rung", CONFINED)
async def test_rewriting_a_file_again_and_again_fills_neither_disk_nor_nats(
    rung: Rung, tmp_path: Path, log: JetStream
) -> None:
    (tmp_path / "tools").mkdir()
    provider = make_provider(tmp_path, tmp_path / "tools", sandbox=Sandbox(SandboxPolicy(rung=rung)))
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    most, named = 0, list[BlobRef]()
    async with (
        log.journal(
            Writer(tenant="acme", execution_id=f"filling-{rung}", agent_id="a", task_id="t", generation=1)
        ) as journal,
        provider.open(OWNER.execution_id, "a", repository, environment) as clone,
    ):
        before = await held(log)
        trail = AuditTrail(agent_id="a")
        keeper = WorkspaceKeeper(clone=clone, journal=journal, blobs=log, owner=OWNER, trail=trail)
        for step in range(TIMES):
            (clone.root / "large").write_bytes(os.urandom(REWRITE))
            assert await keeper.keep(step) >= REWRITE
            most = max(most, await held(log) - before)
            events = [stored async for stored in log.read("acme", f"filling-{rung}")]
            body = events[-1].event.body
            assert isinstance(body, WorkspaceCheckpointed)
            assert body.bundle is not None
            # What the log names can be had; what it named before is gone.
            assert len(await log.get(body.bundle)) == body.bundle.size
            named.append(body.bundle)
        with pytest.raises(NotFound):
            await log.get(named[-2])
        assert most < 2 * REWRITE, most
        ours = clone.root.parent / "git"
        assert size(ours) < TIMES * REWRITE * 0.8
        await keeper.release()
        assert await held(log) - before < MIB


async def test_control_content_that_stays_fills_nats(log: JetStream) -> None:
    before = await held(log)
    for _ in range(TIMES):
        await log.put("acme", "kept", os.urandom(MIB), BUNDLE_MEDIA_TYPE)
    assert await held(log) - before > TIMES * MIB


async def test_a_workspace_that_is_too_large_is_not_stored_and_the_log_says_so(tmp_path: Path, log: JetStream) -> None:
    (tmp_path / "tools").mkdir()
    provider = make_provider(tmp_path, tmp_path / "tools", sandbox=Sandbox(SandboxPolicy(rung=Rung.NONE)))
    repository = await pin(provider, tmp_path, {"README": "x\n"})
    environment = await provider.environment(repository, EnvironmentSpec(detect=False))
    async with (
        log.journal(Writer(tenant="acme", execution_id="bounded", agent_id="a", task_id="t", generation=1)) as journal,
        provider.open("bounded", "a", repository, environment) as clone,
    ):
        owner, trail = Owner(tenant="acme", execution_id="bounded"), AuditTrail(agent_id="a")
        keeper = WorkspaceKeeper(clone=clone, journal=journal, blobs=log, owner=owner, trail=trail, max_bytes=MIB)
        await clone.run(Command(argv=("sh", "-c", "echo small > small")))
        await keeper.keep(1)
        before = await held(log)
        (clone.root / "large").write_bytes(os.urandom(2 * MIB))
        for step in (2, 3):
            with pytest.raises(ResourceExhausted):
                await keeper.keep(step)
        (clone.root / "large").unlink()
        await keeper.keep(4)
        assert await held(log) - before < MIB
        kinds = [type(stored.event.body) async for stored in log.read("acme", "bounded")]
        assert kinds == [WorkspaceCheckpointed, WorkspaceNotKept, WorkspaceCheckpointed]
