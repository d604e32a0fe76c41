"""What a tenant stores must not fill the fleet: a checkpoint takes the place of the one before it."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

from fleet.context.v1 import context_pb2 as context
from fleet.orchestrator.v1 import orchestrator_pb2 as pb
from swe_ai_fleet.adapters.git_workspace import CloneBounds, GitClone, GitWorkspaceProvider
from swe_ai_fleet.adapters.jetstream import JetStream, NatsCredentials
from swe_ai_fleet.agents.recorded_run import BUNDLE_MEDIA_TYPE, WorkspaceKeeper
from swe_ai_fleet.domain.access import Quota, TenantRules
from swe_ai_fleet.domain.blob import BlobRef, blob_ref
from swe_ai_fleet.domain.command import Command, Owner
from swe_ai_fleet.domain.environment import Environment
from swe_ai_fleet.domain.errors import NotFound, ResourceExhausted
from swe_ai_fleet.domain.event import WorkspaceCheckpointed, WorkspaceNotKept, Writer
from swe_ai_fleet.domain.task import EnvironmentSpec, PinnedRepository, RepoRef, SubmittedPatch, TaskKind
from swe_ai_fleet.orchestrator.quotas import Quotas, StorageUsage
from swe_ai_fleet.runtime.nats_server import EmbeddedNats
from swe_ai_fleet.sandbox import IsolationLevel, SandboxPolicy
from swe_ai_fleet.sandbox.interactive import InteractiveCommand, InteractiveProcess
from swe_ai_fleet.testing.repositories import make_repository
from swe_ai_fleet.tools.audit import AuditTrail
from tests.confinement import CONFINED, needs_bwrap
from tests.environments import built, make_provider, opened
from tests.tenants import MAX_STORED_BYTES, NORTH, SOUTH, Caller, refused, tenants
from tests.unit.test_executions import World, a_task

MIB = 1024**2
REWRITE = 16 * MIB
TIMES = 8


@pytest.fixture
async def log(nats_server: EmbeddedNats) -> AsyncIterator[JetStream]:
    address = nats_server.address
    async with JetStream.connect(address.url, credentials=NatsCredentials(token=address.token), timeout=10.0) as opened:
        await opened.ensure_streams()
        yield opened


async def held(log: JetStream) -> int:
    return (await log.usage())["OBJ_agent-blobs"].bytes


def size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("level", CONFINED)
async def test_rewriting_a_file_again_and_again_fills_neither_disk_nor_nats(
    level: IsolationLevel, tmp_path: Path, log: JetStream
) -> None:
    most, named = 0, list[BlobRef]()
    async with kept(log, f"filling-{level}", tmp_path, level) as (keeper, clone):
        before = await held(log)
        for step in range(TIMES):
            (clone.root / "large").write_bytes(os.urandom(REWRITE))
            assert await keeper.keep(step) >= REWRITE
            most = max(most, await held(log) - before)
            events = [stored async for stored in log.read("acme", f"filling-{level}")]
            body = events[-1].event.body
            assert isinstance(body, WorkspaceCheckpointed) and body.bundle is not None
            # What the log names can be had; what it named before is gone.
            assert len(await log.get(body.bundle)) == body.bundle.size
            named.append(body.bundle)
        with pytest.raises(NotFound):
            await log.get(named[-2])
        assert most < 2 * REWRITE, most
        assert size(clone.root.parent / "git") < TIMES * REWRITE * 0.8
        await keeper.supersede(None)
        assert await held(log) - before < MIB


@asynccontextmanager
async def kept(
    log: JetStream, execution: str, root: Path, level: IsolationLevel, **bounds: int
) -> AsyncIterator[tuple[WorkspaceKeeper, GitClone]]:
    """A clone of an agent's whose checkpoints are kept."""
    owner = Owner(tenant="acme", execution_id=execution)
    async with log.journal(writing("acme", execution)) as journal, opened(root, level) as (_, clone):
        trail = AuditTrail(agent_id="a")
        yield WorkspaceKeeper(clone=clone, journal=journal, blobs=log, owner=owner, trail=trail, **bounds), clone


def writing(tenant: str, execution: str, agent: str = "a") -> Writer:
    return Writer(tenant=tenant, execution_id=execution, agent_id=agent, task_id="t", generation=1)


async def test_a_workspace_that_is_too_large_is_not_stored_and_the_log_says_so(tmp_path: Path, log: JetStream) -> None:
    async with kept(log, "bounded", tmp_path, IsolationLevel.NONE, max_bytes=MIB) as (keeper, clone):
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


@asynccontextmanager
async def storage_usage(log: JetStream) -> AsyncIterator[StorageUsage]:
    streams = {"events": log.sizes("AGENT_EVENTS"), "results": log.sizes("AGENT_RESULTS"), "blobs": log.sizes()}
    async with StorageUsage(streams, kept_seconds=90 * 86_400.0) as usage:
        yield usage


async def told(usage: StorageUsage, tenant: str, least: int, most: int) -> None:
    """Wait until a usage has taken in what was stored."""
    async with asyncio.timeout(10):
        while not least <= await usage.bytes_of(tenant) <= most:
            await asyncio.sleep(0.01)


async def test_who_has_stored_too_much_hands_in_nothing_more(log: JetStream) -> None:
    def rules(name: str) -> TenantRules:
        quota = Quota(storage_bytes=2 * MIB) if name in ("hoarder", "judged") else Quota()
        return TenantRules(tenant=name, quota=quota)

    async with storage_usage(log) as usage:
        quotas = Quotas(rules=rules, stored=usage.bytes_of)
        async with World().running(quotas=quotas) as executions:
            await executions.submit(a_task("small", tenant="hoarder"))
            # The control: the same of a tenant that has no quota.
            for tenant in ("hoarder", "modest"):
                for _ in range(3):
                    await log.put(tenant, "e", os.urandom(MIB), "text/plain")
                await told(usage, tenant, 3 * MIB, 4 * MIB)
            await executions.submit(a_task("more", tenant="modest"))
            with pytest.raises(ResourceExhausted) as refused:
                await executions.submit(a_task("more", tenant="hoarder"))
            assert refused.value.field == "quota.storage_bytes"
            with pytest.raises(ResourceExhausted):
                await executions.check_storage("hoarder", 1)
            # Patches that are handed in count as well.
            for size, kept in ((3 * MIB, False), (MIB, True)):
                data = os.urandom(size)
                patch = SubmittedPatch(name="mine", patch=blob_ref("judged", "e", data, "text/x-diff"))
                task = replace(a_task(f"{size}", tenant="judged"), kind=TaskKind.JUDGE, patches=(patch,))
                with nullcontext() if kept else pytest.raises(ResourceExhausted):
                    await executions.submit(task, store=lambda data=data: log.put("judged", "e", data, "text/x-diff"))
                await told(usage, "judged", *((MIB, 2 * MIB) if kept else (0, 0)))


def _judged(task_id: str, diff: bytes) -> pb.SubmitTaskRequest:
    patch = pb.SubmittedPatch(name="mine", diff=diff)
    judge = pb.JudgePatchesRequest(task_id=task_id, repo=pb.RepoRef(path="/srv/app"), patches=[patch])
    return pb.SubmitTaskRequest(judge=judge)


async def test_of_patches_that_are_refused_nothing_is_stored(tmp_path: Path) -> None:
    async with tenants(tmp_path) as world:
        ann = world.by(NORTH, "ann")
        empty = await held(world.log)
        diff = "diff --git a/a b/a\n" + "x" * MIB
        first = await ann.call("SubmitTask", _judged("t", diff.encode()))
        # The control: those of one that is accepted are kept.
        accepted = await held(world.log)
        assert accepted - empty > MIB
        # Known by its execution, the same is the same, and nothing is stored for another that takes its name.
        assert (await ann.call("SubmitTask", _judged("t", diff.encode()))).execution_id == first.execution_id
        for number in range(3):
            code, _ = await refused(ann.call("SubmitTask", _judged("t", f"{diff}{number}".encode())))
            assert code is StatusCode.ALREADY_EXISTS
        malformed = _judged("t2", diff.encode())
        malformed.judge.repo.ref = "x"
        malformed.judge.environment.variables["LD_PRELOAD"] = "x"
        assert (await refused(ann.call("SubmitTask", malformed)))[0] is StatusCode.INVALID_ARGUMENT
        assert await held(world.log) - accepted < MIB // 2


@pytest.mark.slow  # quick: who has stored too much
async def test_what_a_tenant_may_store_holds_for_what_it_knows_and_remembers(tmp_path: Path) -> None:
    async with tenants(tmp_path) as world:
        hoarder, other = world.by(SOUTH, "ann"), world.by(NORTH, "ann")

        async def fact(who: Caller, number: int) -> None:
            # In a namespace each: the limit of one namespace is none of a tenant's.
            text = f"{number} " + "x" * 3_900
            await who.call("AddFact", context.AddFactRequest(namespace=f"agent:a{number}", text=text))

        async def story(who: Caller, number: int) -> None:
            made = context.Story(story_id=f"S-{number}", title="T", description="x" * 3_900)
            await who.call("CreateStory", context.CreateStoryRequest(story=made))

        # The control: a tenant without a quota stores what it likes.
        most = MAX_STORED_BYTES // 3_900
        for number in range(most + 10):
            await fact(other, number)
        with pytest.raises(AioRpcError) as ended:
            for number in range(4 * most):
                await (fact if number % 2 else story)(hoarder, number)
        assert ended.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert (await refused(story(hoarder, -1)))[0] is StatusCode.RESOURCE_EXHAUSTED
        # What is known can be read, and room made; then there is room.
        assert (await hoarder.call("ListStories", context.ListStoriesRequest(page_size=1))).stories
        await world.by(SOUTH, "zoe").call("ClearMemory", context.ClearMemoryRequest(everywhere=True))
        async with asyncio.timeout(10):
            while True:
                with suppress(AioRpcError):
                    await fact(hoarder, -2)
                    break
                await asyncio.sleep(0.02)


async def test_what_is_stored_counts_for_its_tenant_until_it_is_given_back(log: JetStream) -> None:
    async with storage_usage(log) as usage:
        # The control: content that stays fills NATS.
        before = await held(log)
        for number in range(TIMES):
            place = f"checkpoints/a/x-{number % 2}"
            kept = await log.put("counted", "e", os.urandom(MIB), BUNDLE_MEDIA_TYPE, place=place)
            for data in [os.urandom(MIB)] * 2:
                await log.put("acme", "kept", data, BUNDLE_MEDIA_TYPE)
        assert TIMES * MIB < await held(log) - before < (TIMES + 3) * MIB
        await told(usage, "counted", 2 * MIB, 2 * MIB)
        await log.discard(kept)
        await told(usage, "counted", MIB, MIB)
        async with log.journal(writing("counted", "e")) as journal:
            await journal.append(WorkspaceNotKept(step=1, reason="x" * 10_000))
        await told(usage, "counted", MIB + 10_000, MIB + 12_000)
    # Whoever begins later counts the same.
    async with storage_usage(log) as again:
        await told(again, "counted", MIB + 10_000, MIB + 12_000)


BARE = Environment()


def make(root: Path, limit: int, *, level: IsolationLevel = IsolationLevel.NONE) -> GitWorkspaceProvider:
    return make_provider(root, level=level, bounds=CloneBounds(tenant_disk_bytes=limit))


def filling(name: str) -> EnvironmentSpec:
    """Set-up that leaves three MiB, other ones for each name."""
    return EnvironmentSpec(detect=False, setup=(f"head -c {3 * MIB} /dev/urandom >/environment/{name}",))


def unused(*places: Path) -> None:
    """Say that places were last used long ago, the first of them longest."""
    for number, place in enumerate(places):
        then = time.time() - 30 * 3600.0 + number
        os.utime(place, (then, then))


def environments(root: Path) -> list[Path]:
    return [root / "home/environments" / name for name in built(root)]


@needs_bwrap
async def test_environments_beyond_the_limit_are_refused_then_the_oldest_goes(tmp_path: Path) -> None:
    provider = make(tmp_path, 8 * MIB, level=IsolationLevel.BUBBLEWRAP)
    path = make_repository(tmp_path / "repo", {"README": "x\n"})
    mine = await provider.pin("acme", RepoRef(location=str(path)))
    await provider.environment(mine, filling("first"))
    (oldest,) = environments(tmp_path)
    await provider.environment(mine, filling("second"))
    both = environments(tmp_path)
    with pytest.raises(ResourceExhausted, match="FLEET_TENANT_DISK_BYTES") as refused:
        await provider.environment(mine, filling("third"))
    assert refused.value.field == "tenant_disk_bytes"
    # Nothing that was in use is gone, and nothing of what was refused is left.
    assert environments(tmp_path) == both
    assert not [*(tmp_path / "home/trash").iterdir()]
    unused(oldest, *(place for place in both if place != oldest))
    assert (await provider.environment(mine, filling("third"))).key
    assert not oldest.exists()
    assert (await provider.environment(mine, filling("second"))).cached


@pytest.mark.slow  # quick: environments beyond the limit
@needs_bwrap
async def test_an_environment_that_an_execution_holds_stays(tmp_path: Path) -> None:
    provider = make(tmp_path, 5 * MIB, level=IsolationLevel.BUBBLEWRAP)
    mine = await provider.pin("acme", RepoRef(location=str(make_repository(tmp_path / "repo", {"README": "x\n"}))))
    environment = await provider.environment(mine, filling("held"))
    (held,) = environments(tmp_path)
    async with provider.open("e", "a", mine, environment):
        unused(held)
        with pytest.raises(ResourceExhausted):
            await provider.environment(mine, filling("more"))
    assert held.exists()
    # Another clone of the execution may come; once it has ended none does.
    await provider.release("e")
    unused(held)
    await provider.environment(mine, filling("more"))
    assert not held.exists()


async def pinned(provider: GitWorkspaceProvider, root: Path, name: str) -> PinnedRepository:
    path = make_repository(root / name, {"blob": os.urandom(2 * MIB)})
    return await provider.pin("acme", RepoRef(location=str(path)))


async def test_repositories_beyond_the_limit_are_refused_then_the_oldest_go(tmp_path: Path) -> None:
    provider = make(tmp_path, 5 * MIB)
    first, second = await pinned(provider, tmp_path, "first"), await pinned(provider, tmp_path, "second")
    with pytest.raises(ResourceExhausted, match="FLEET_TENANT_DISK_BYTES"):
        await pinned(provider, tmp_path, "third")
    seeds = {seed.name: seed for seed in (tmp_path / "home/seeds").glob("*/[0-9a-f]*")}
    assert set(seeds) == {first.commit, second.commit}
    unused(seeds[second.commit], seeds[first.commit])
    third = await provider.pin("acme", RepoRef(location=str(tmp_path / "third")))
    assert not seeds[second.commit].exists()
    async with provider.open("e", "a", third, BARE), provider.open("e", "b", first, BARE) as clone:
        assert (clone.root / "blob").stat().st_size == 2 * MIB
        # Both are held now: there is no room for what went.
        unused(*(tmp_path / "home/seeds").glob("*/[0-9a-f]*"))
        with pytest.raises(ResourceExhausted):
            await provider.pin("acme", RepoRef(location=str(tmp_path / "second")))
    await provider.release("e")
    unused(*(tmp_path / "home/seeds").glob("*/[0-9a-f]*"))
    assert (await provider.pin("acme", RepoRef(location=str(tmp_path / "second")))) == second


# --- programs that stay (MCP servers) ---


FILL = "for i in $(seq 2000); do head -c 1048576 /dev/zero >>/workspace/x; done; echo filled; cat"


@needs_bwrap
async def test_a_server_that_fills_the_disk_is_killed(tmp_path: Path) -> None:
    command, policy = InteractiveCommand(argv=("sh", "-c", FILL)), SandboxPolicy(max_disk_bytes=32 * MIB)
    process = await InteractiveProcess.start(tmp_path, command, policy=policy)
    try:
        async with asyncio.timeout(30):
            assert await process.stdout.readline() == b""
            assert await process.wait()
        assert "disk limit" in process.errors().text()
    finally:
        await process.kill()
