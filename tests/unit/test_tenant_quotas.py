"""What one tenant may use, and that no other has less for it: turns, slots, tokens, the least approval, approvers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.access import Quota, TenantRules
from swe_ai_fleet.domain.assignment import CodingAssignment
from swe_ai_fleet.domain.errors import AlreadyExists, InvalidRequest, ResourceExhausted
from swe_ai_fleet.domain.event import ExecutionStarted, ExecutionStatus
from swe_ai_fleet.domain.task import ApprovalPolicy, Constraints, PinnedRepository, RepoRef, TaskKind
from swe_ai_fleet.orchestrator.executions import Room
from swe_ai_fleet.orchestrator.queue import TenantTurns, in_order
from swe_ai_fleet.orchestrator.quotas import ConcurrencyLimiter, Quotas
from tests.scripted_fleet import PROVEN, ScriptedRun
from tests.unit.test_executions import World, a_task
from tests.unit.test_queue import NOW
from tests.unit.test_queue import one as queued

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)


@pytest.fixture
def world() -> World:
    return World()


def quotas(spent: int = 0, **by_tenant: Quota | TenantRules) -> Quotas:
    """Rules for some tenants, all of which spent so much today."""
    rules = {
        name: given if isinstance(given, TenantRules) else TenantRules(tenant=name, quota=given)
        for name, given in by_tenant.items()
    }

    async def known(_: str) -> int:
        return spent

    return Quotas(rules=lambda name: rules.get(name, TenantRules(tenant=name)), spent=known, now=lambda: NOON)


# --- turns --------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=2),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0.05, 1.0)),
    st.data(),
)
def test_at_every_moment_no_tenant_is_more_than_one_place_ahead_of_its_share(backlogs, shares, data) -> None:
    entries = [
        queued(f"{tenant}-{number:03}", tenant=tenant, priority=data.draw(st.integers(0, 9)), waited=-number)
        for tenant, count in backlogs.items()
        for number in range(count)
    ]
    weighs = {tenant: shares.get(tenant, 1.0) for tenant in backlogs}
    ordered = in_order(entries, {}, now=NOW + 1_000, tenants=TenantTurns(weights=weighs))
    assert sorted(one.execution_id for one in ordered) == sorted(one.execution_id for one in entries)
    begun: Counter[str] = Counter()
    for one in ordered:
        behind = [tenant for tenant, count in backlogs.items() if begun[tenant] < count]
        for other in behind:
            assert begun[one.tenant] / weighs[one.tenant] <= begun[other] / weighs[other] + 1e-9
        begun[one.tenant] += 1


# --- slots --------------------------------------------------------------------------------------------------------


def an_assignment(tenant: str, number: int = 1, **fields: object) -> CodingAssignment:
    task = a_task(f"task-{number}", tenant=tenant, num_agents=1)
    repository = PinnedRepository(tenant=tenant, location="/srv/app", commit="c" * 40)
    return replace(
        CodingAssignment(execution_id=task.execution_id, agent_id="agent-dev-1", task=task, repository=repository),
        **fields,
    )


async def test_no_more_agents_of_a_tenant_work_than_its_quota_says() -> None:
    hold = asyncio.Event()
    world = World()
    world.fleet.default = ScriptedRun(after=hold)
    limiter = ConcurrencyLimiter(world.fleet, quotas(small=Quota(agents=2)), me="one")
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        runs = [group.create_task(limiter.run(an_assignment("small", number))) for number in range(5)]
        others = [group.create_task(limiter.run(an_assignment("other", number))) for number in range(4)]
        await world.fleet.started(6)
        assert Counter(one.task.tenant for one in world.fleet.begun) == {"small": 2, "other": 4} == limiter.taken
        # Who gives up waiting leaves no gap.
        runs[3].cancel()
        await asyncio.wait([runs[3]])
        hold.set()
    assert all(run.done() for run in runs + others)
    begun = [one.task.task_id for one in world.fleet.begun if one.task.tenant == "small"]
    assert begun == ["task-0", "task-1", "task-2", "task-4"]
    assert limiter.taken.total() == 0


async def test_replicas_share_a_quota_evenly() -> None:
    hold, names = asyncio.Event(), ("one", "two", "three")
    worlds = [World(), World()]
    for world in worlds:
        world.fleet.default = ScriptedRun(after=hold)

    def sharing(most: int, *replicas: str) -> list[ConcurrencyLimiter]:
        rules = quotas(small=Quota(agents=most))
        return [
            ConcurrencyLimiter(worlds[number % 2].fleet, rules, me=name, sharers=lambda _: replicas)
            for number, name in enumerate(replicas)
        ]

    replicas = sharing(3, *names[:2])
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for limiter in replicas:
            for number in range(4):
                group.create_task(limiter.run(an_assignment("small", number)))
        await worlds[0].fleet.started(2)
        await worlds[1].fleet.started(1)
        await asyncio.sleep(0)
        assert [limiter.taken["small"] for limiter in replicas] == [2, 1]
        hold.set()
    assert [len(world.fleet.begun) for world in worlds] == [4, 4]


# --- what waits, what is spent --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{"quotas": 2}, {"queued": 2}, {"queued_per_caller": 2}])
async def test_tasks_handed_in_at_once_are_no_more_than_may_wait(world: World, bounds: dict[str, int]) -> None:
    hold = asyncio.Event()
    world.fleet.default = ScriptedRun(after=hold)
    most = quotas(small=Quota(queued=bounds.get("quotas", 0)))
    room = Room(executions=1, **{name: most for name, most in bounds.items() if name != "quotas"})
    async with world.running(room=room, quotas=most) as executions:
        await executions.submit(a_task("running", tenant="other"))
        await world.fleet.started(1)
        tasks = [a_task(f"t-{number}", tenant="small") for number in range(6)]
        answers = await asyncio.gather(*(executions.submit(task) for task in tasks), return_exceptions=True)
        refused = [one for one in answers if isinstance(one, ResourceExhausted)]
        assert (len(refused), len(list(executions.projection.select("small")))) == (4, 2)
        assert "quotas" not in bounds or {one.field for one in refused} == {"quota.queued"}
        # One that is handed in again takes no place of its own, and another tenant's has room.
        known = executions.projection.unfinished("small")[0].task
        again = await asyncio.gather(*(executions.submit(known) for _ in range(3)))
        assert all(one.existed for one in again)
        assert not (await executions.submit(a_task("more", tenant="other"))).existed
        hold.set()


async def test_tokens_of_the_day_are_refused_at_acceptance_with_the_end_of_the_day(world: World) -> None:
    async with world.running(quotas=quotas(1_000, small=Quota(tokens_per_day=1_000))) as executions:
        with pytest.raises(ResourceExhausted) as refused:
            await executions.submit(a_task(tenant="small"))
        assert refused.value.field == "quota.tokens_per_day"
        assert "2026-05-05T00:00+00:00" in refused.value.hint
        await executions.submit(a_task(tenant="other"))


async def test_agents_get_no_more_tokens_than_are_left_of_the_day_or_their_task_allows() -> None:
    limits = replace(a_task().constraints.limits, max_tokens=50)
    limited = a_task(tenant="small", num_agents=1, constraints=replace(a_task().constraints, limits=limits))
    for task, spent, tokens in ((a_task(tenant="small", num_agents=3), 400, [200, 200, 200]), (limited, 0, [50])):
        world = World()
        async with world.running(quotas=quotas(spent, small=Quota(tokens_per_day=1_000))) as executions:
            await executions.wait("small", (await executions.submit(task)).execution_id)
        assert [one.task.constraints.limits.max_tokens for one in world.fleet.begun] == tokens


# --- approval -----------------------------------------------------------------------------------------------------


async def test_the_tenants_least_policy_wins_and_the_first_event_says_so(world: World) -> None:
    least = [ApprovalPolicy.RISKY]
    rules = Quotas(
        rules=lambda name: TenantRules(tenant=name, approval=least[0]) if name == "strict" else TenantRules(tenant=name)
    )
    async with world.running(quotas=rules) as executions:
        for tenant in ("strict", "other"):
            accepted = await executions.submit(a_task(tenant=tenant))
            await executions.wait(tenant, accepted.execution_id)
        # Parts of a task have the least policy too.
        repository = PinnedRepository(tenant="strict", location="/srv/app", commit="c" * 40)
        part = await executions.begin(a_task("part", tenant="strict", num_agents=1), repository)
        assert (await executions.wait("strict", part)).task.approval is ApprovalPolicy.RISKY
        more = await executions.submit(a_task("more", tenant="strict", approval=ApprovalPolicy.EVERY))
        await executions.wait("strict", more.execution_id)
        # A rule that changes later makes no other request of the same one.
        least[0] = ApprovalPolicy.EVERY
        assert (await executions.submit(a_task(tenant="strict"))).existed
        with pytest.raises(AlreadyExists):
            await executions.submit(a_task(tenant="strict", approval=ApprovalPolicy.EVERY))
    started = {(body.task.tenant, body.task.task_id): body for body in world.bodies(ExecutionStarted)}
    for of, policy, asked in (
        (("strict", "task-1"), ApprovalPolicy.RISKY, ApprovalPolicy.NONE),
        (("other", "task-1"), ApprovalPolicy.NONE, None),
        (("strict", "more"), ApprovalPolicy.EVERY, None),
    ):
        assert (started[of].task.approval, started[of].asked_approval) == (policy, asked)
    assert world.fleet.begun[0].task.approval is ApprovalPolicy.RISKY


async def test_tasks_that_name_no_repository_work_on_the_tenants_default_one(world: World) -> None:
    rules = quotas(acme=TenantRules(tenant="acme", default_repository="/srv/default"))
    without = RepoRef(location="", ref="topic")
    async with world.running(quotas=rules) as executions:
        for kind in (TaskKind.DELIBERATE, TaskKind.ORCHESTRATE):
            task = a_task(tenant="acme", kind=kind, repo=without)
            accepted = await executions.submit(task)
            state = await executions.wait("acme", accepted.execution_id)
            assert (state.repository.location, state.task.repo.ref) == ("/srv/default", "topic")
            assert (await executions.submit(task)).existed
        with pytest.raises(InvalidRequest) as refused:
            await executions.submit(a_task(tenant="other", repo=without))
    assert refused.value.field == "repo"


async def test_a_tenant_may_want_every_winner_verified_whatever_a_caller_asks(world: World) -> None:
    rules = quotas(strict=TenantRules(tenant="strict", require_verified=True))
    wanting = Constraints(require_verified=True)
    async with world.running(quotas=rules) as executions:
        for task, status in (
            (a_task(tenant="strict", num_agents=1), ExecutionStatus.NO_WINNER),
            (a_task(tenant="other", num_agents=1), ExecutionStatus.COMPLETED),
            (a_task("asking", tenant="other", num_agents=1, constraints=wanting), ExecutionStatus.NO_WINNER),
            (a_task("proven", tenant="strict", num_agents=1), ExecutionStatus.COMPLETED),
        ):
            if task.task_id == "proven":
                world.fleet.default = ScriptedRun(checks=(PROVEN,))
            accepted = await executions.submit(task)
            assert (await executions.wait(task.tenant, accepted.execution_id)).status is status, task.task_id
            # The rule makes no other request of the same one.
            assert (await executions.submit(task)).existed
