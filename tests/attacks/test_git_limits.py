"""What the fleet's own git takes of a node for one tenant: disk within a limit, CPUs by the slots of all."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from services.auth import acting_for
from services.orchestrator.uploads import Uploads
from swe_ai_fleet.adapters.git_workspace import Credential, GitWorkspaceProvider
from swe_ai_fleet.domain.access import Principal
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import ResourceExhausted
from swe_ai_fleet.domain.owner import Owner
from swe_ai_fleet.domain.task import RepoRef
from swe_ai_fleet.sandbox import CpuSlots, Rung, Sandbox, SandboxPolicy
from swe_ai_fleet.testing.memory_log import MemoryLog
from swe_ai_fleet.testing.repositories import git, make_repository
from tests.environments import provider_at
from tests.git_server import PASSWORD, USER, git_server, served_copy

MIB = 1024**2
LIMIT = 4 * MIB


def make(root: Path, *, limit: int = LIMIT, slots: CpuSlots | None = None) -> GitWorkspaceProvider:
    async def credential(tenant: str, reference: str, location: str) -> Credential:
        return Credential(username=USER, password=PASSWORD)

    sandbox = Sandbox(SandboxPolicy(rung=Rung.NONE, max_disk_bytes=limit), slots)
    remote = {"protocols": ("http",), "hosts": ("127.0.0.1",), "credentials": credential}
    return provider_at(root.parent, root.name, sandbox=sandbox, **remote)


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


async def test_a_repository_larger_than_a_workspace_is_not_fetched(tmp_path: Path) -> None:
    make_repository(tmp_path / "source", {"blob": os.urandom(3 * LIMIT)})
    served_copy(tmp_path / "source", tmp_path / "served", "large.git")
    async with git_server(tmp_path / "served") as server:
        asked = RepoRef(location=f"{server.url}/large.git")
        provider = make(tmp_path / "home")
        for _ in range(3):
            with pytest.raises(ResourceExhausted) as refused:
                await provider.pin("acme", asked)
            assert refused.value.field == "repo.url"
            assert "FLEET_MAX_DISK_BYTES" in refused.value.hint
        # Nothing gathers of what came before git was stopped.
        assert size(tmp_path / "home/repositories") < MIB
        # The control.
        assert (await make(tmp_path / "other", limit=10 * LIMIT).pin("acme", asked)).commit


async def test_a_small_commit_with_more_files_than_a_workspace_may_hold_is_refused(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "zeros", {"zeros": bytes(3 * LIMIT)})
    assert size(path / ".git/objects") < MIB
    with pytest.raises(ResourceExhausted) as refused:
        await make(tmp_path / "home").pin("acme", RepoRef(location=str(path)))
    assert refused.value.field == "repo"
    assert "FLEET_MAX_DISK_BYTES" in refused.value.hint
    # The control.
    assert (await make(tmp_path / "other", limit=10 * LIMIT).pin("acme", RepoRef(location=str(path)))).commit


async def test_submodules_come_to_no_more_than_a_workspace_together(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "repository", {"README": "x\n"})
    for name in ("one", "two"):
        inner = make_repository(tmp_path / name, {"zeros": bytes(LIMIT * 2 // 3), "name": name})
        git(path, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), name)
    git(path, "commit", "-qm", "submodules")
    for home, limit, expected in (("home", LIMIT, 1), ("other", 10 * LIMIT, 2)):
        provider = make(tmp_path / home, limit=limit)
        pinned = await provider.pin("acme", RepoRef(location=str(path)))
        async with provider.open("e", "a", pinned, Environment()) as clone:
            assert sum((clone.root / name / "zeros").exists() for name in ("one", "two")) == expected


async def test_git_waits_for_the_tenants_turn(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "repository", {"README": "x\n"})
    slots = CpuSlots(tmp_path / "slots", 1)
    provider = make(tmp_path / "home", slots=slots)

    async def taken(tenant: str) -> str:
        bundle = tmp_path / f"{tenant}.bundle"
        git(path, "bundle", "create", "--quiet", str(bundle), "HEAD", "main")
        digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
        commit, _ = await provider.take(tenant, bundle, digest, RepoRef(location=f"upload:{digest}"), stored)
        return commit

    async def stored() -> None:
        pass

    async with slots.hold(Owner(tenant="acme", execution_id="tests")):
        unpacking = asyncio.create_task(taken("acme"))
        async with asyncio.timeout(60):
            while not any((tmp_path / "slots/waiting").iterdir()):
                await asyncio.sleep(0.01)
        # The control: another tenant has a slot of its own. Accepting a task takes none.
        theirs = await taken("other")
        assert (await provider.pin("acme", RepoRef(location=str(path)))).commit == theirs
        assert not unpacking.done()
    assert await unpacking == theirs


async def test_an_upload_that_waits_for_its_turn_keeps_no_other_tenant_waiting(tmp_path: Path) -> None:
    path = make_repository(tmp_path / "repository", {"README": "x\n"})
    git(path, "bundle", "create", "--quiet", str(tmp_path / "bundle"), "HEAD", "main")
    slots = CpuSlots(tmp_path / "slots", 1)
    uploads = Uploads(workspaces=make(tmp_path / "home", slots=slots), blobs=MemoryLog(), max_bytes=MIB)

    async def pieces() -> AsyncIterator[pb.UploadRepositoryRequest]:
        yield pb.UploadRepositoryRequest(header=pb.UploadRepositoryHeader())
        yield pb.UploadRepositoryRequest(chunk=(tmp_path / "bundle").read_bytes())

    async def sent(tenant: str) -> str:
        with acting_for(Principal(tenant=tenant)):
            return (await uploads.receive(pieces())).upload_id

    async with slots.hold(Owner(tenant="acme", execution_id="tests")):
        waiting = [asyncio.create_task(sent("acme")) for _ in range(2)]
        async with asyncio.timeout(60):
            while not any((tmp_path / "slots/waiting").iterdir()):
                await asyncio.sleep(0.01)
            theirs = await sent("other")
        assert not any(upload.done() for upload in waiting)
    assert await asyncio.gather(*waiting) == [theirs, theirs]
