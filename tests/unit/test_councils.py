"""Councils: who sits in them, how a task uses them, and the store that keeps them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from swe_ai_fleet.adapters.agent_service import target_of
from swe_ai_fleet.agents.external_agent import AgentFault
from swe_ai_fleet.domain.council import Council, CouncilMember, EndpointRules
from swe_ai_fleet.domain.errors import InvalidRequest, PreconditionFailed
from swe_ai_fleet.domain.task import COUNCIL_ROUNDS, ApprovalPolicy, PinnedRepository, Role
from swe_ai_fleet.orchestrator.council_store import CouncilStore, council_for, read_councils
from swe_ai_fleet.orchestrator.councils import CouncilRules, adopted, assignments, seated, seats
from swe_ai_fleet.testing.memory_stores import MemoryKeyValue
from tests.tables import table
from tests.unit.test_executions import a_task

TENANT = "default"
TASK = a_task(num_agents=0, rounds=COUNCIL_ROUNDS)
PINNED = PinnedRepository(tenant=TENANT, location="/r", commit="a" * 40)
RULES = CouncilRules(
    profiles=("small", "large"),
    endpoints=EndpointRules(patterns=("127.0.0.1:7000", "*.example.org:443")),
    harnesses=("opencode",),
    max_agents=5,
)


def own(name: str, **changes: object) -> CouncilMember:
    return CouncilMember(agent_id=name, **changes)


def outside(name: str, **changes: object) -> CouncilMember:
    return CouncilMember(agent_id=name, endpoint="127.0.0.1:7000", **changes)


def council(*members: CouncilMember, **changes: object) -> Council:
    return Council(council_id="council-dev", role=Role.DEV, members=members, **changes)


def council_store(store: MemoryKeyValue | None = None, *defaults: Council) -> CouncilStore:
    return CouncilStore(store or MemoryKeyValue(), defaults=defaults, rules=RULES, now=lambda: "2026-01-01T00:00:00Z")


class TestSeats:
    def test_who_sits_and_with_what(self) -> None:
        """What a task leaves open is the council's, what the council leaves open its members' or the fleet's."""
        two, mixed = council(own("a"), own("b")), council(own("a"), outside("x"), model_profile="small")
        named = council(own("a", model_profile="large"), own("b"), model_profile="small")
        for its, task, profiles in (
            (None, TASK, {"agent-dev-1": "", "agent-dev-2": "", "agent-dev-3": ""}),
            (replace(two, rounds=4, model_profile="small,large"), TASK, {"a": "small", "b": "large"}),
            (named, TASK, {"a": "large", "b": "small"}),
            (named, replace(TASK, model_profile="large"), {"a": "large", "b": "large"}),
            # Agents of others get no profile of ours.
            (mixed, TASK, {"a": "small", "x": ""}),
        ):
            sitting = assignments(task, PINNED, adopted(task, its) if its else None)
            assert {each.agent_id: each.perspective.model_profile for each in sitting} == profiles
            assert seated(task, its).num_agents == len(profiles)
        ours, theirs = assignments(TASK, PINNED, mixed)
        assert (ours.perspective.endpoint, theirs.perspective.endpoint) == ("", "127.0.0.1:7000")
        assert ours.perspective.instructions != theirs.perspective.instructions
        params = {"temperature": "0.3", "instructions": "Write no comments."}
        for asked, temperature in (({}, 0.3), ({"temperature": "0.9"}, 0.9)):
            task = replace(TASK, custom_params=asked)
            for each in assignments(task, PINNED, replace(two, custom_params=params)):
                assert each.perspective.temperature == temperature
                assert each.perspective.instructions.startswith("Write no comments.\n")


class TestCouncilStore:
    async def test_a_task_names_who_sits_in_it(self) -> None:
        """In place of its council's members; harnesses stay where people are asked, and sit as often as it takes."""
        councils = council_store(None, council(own("a"), outside("x"), own("h", endpoint="acp:opencode"), rounds=3))
        task = replace(TASK, num_agents=0, seats=("fleet", "acp:opencode", "fleet"), rounds=COUNCIL_ROUNDS)
        its = await council_for(task, councils)
        assert its is not None and seated(task, its).rounds == 3
        sitting = {each.agent_id: each.perspective.endpoint for each in assignments(task, PINNED, its)}
        assert sitting == {"agent-dev-1": "", "opencode-2": "acp:opencode", "agent-dev-3": ""}
        asking = await council_for(replace(TASK, approval=ApprovalPolicy.EVERY, num_agents=4), councils)
        assert [seat.agent_id for seat in seats(replace(TASK, num_agents=4), asking)] == [
            "a",
            "h",
            "a-seat2",
            "h-seat2",
        ]
        for changes, field in (
            ({"seats": ("fleet", "acp:nobody")}, "seats[1]"),
            ({"seats": ("someone",)}, "seats[0]"),
            ({"seats": ("127.0.0.1:7000",)}, "seats[0]"),
            ({"seats": ("fleet",), "num_agents": 2}, "num_agents"),
        ):
            with pytest.raises(InvalidRequest) as fault:
                await council_for(replace(task, **changes), councils)
            assert fault.value.field == field

    async def test_who_may_join_and_who_is_left(self) -> None:
        councils = council_store(None, council(own("a"), own("b")))
        again = await councils.register(TENANT, Role.DEV, own("a", languages=("go",)))
        assert again.known and [each.languages for each in again.council.members] == [("go",), ()]
        full = council_store()
        await full.create(TENANT, council(), num_agents=5)
        theirs, ours = council_store(), council_store()
        await theirs.create(TENANT, council(agent_type="external"))
        await ours.create(TENANT, council(agent_type="tools"))
        asking = replace(TASK, approval=ApprovalPolicy.PLAN)
        for refused, kind, field in (
            (full.register(TENANT, Role.DEV, own("one-too-many")), PreconditionFailed, "agent_id"),
            (council_for(TASK, theirs), PreconditionFailed, "role"),
            (theirs.register(TENANT, Role.DEV, own("a")), InvalidRequest, "endpoint"),
            (ours.register(TENANT, Role.DEV, outside("x")), InvalidRequest, "endpoint"),
            # Where people are asked only own agents sit.
            (council_for(asking, council_store(None, council(outside("x")))), PreconditionFailed, "approval"),
        ):
            with pytest.raises(kind) as fault:
                await refused
            assert fault.value.field == field
        left = await council_for(asking, council_store(None, council(own("a"), outside("x"))))
        assert left is not None and [each.agent_id for each in left.members] == ["a"]

    async def test_an_endpoint_that_the_tenant_may_no_longer_use_gets_no_tasks(self) -> None:
        places = {"now": EndpointRules(patterns=("127.0.0.1:7000",))}

        async def sitting(of: CouncilStore) -> list[str]:
            its = await council_for(TASK, of)
            assert its is not None
            return [member.agent_id for member in its.members]

        theirs = CouncilStore(MemoryKeyValue(), rules=RULES, places=lambda _: places["now"])
        # What the operator's own file names is for every tenant.
        provided = CouncilStore(
            MemoryKeyValue(), defaults=[council(outside("x"))], rules=RULES, places=lambda _: places["now"]
        )
        for member in (outside("x"), own("a")):
            await theirs.register(TENANT, Role.DEV, member)
        assert await sitting(theirs) == ["x", "a"]
        places["now"] = EndpointRules()
        assert (await sitting(theirs), await sitting(provided)) == (["a"], ["x"])
        await theirs.unregister(TENANT, Role.DEV, "a")
        with pytest.raises(PreconditionFailed) as refused:
            await council_for(TASK, theirs)
        assert refused.value.field == "role"


class TestFile:
    def test_councils_are_read(self, tmp_path: Path) -> None:
        file = tmp_path / "councils.toml"
        file.write_text(
            """
            [DEV]
            rounds = 2
            custom_params = { temperature = "0.2" }
            [[DEV.agents]]
            agent_id = "careful"
            model_profile = "large"
            [qa]
            num_agents = 2
            peer_review = false
            """
        )
        careful = own("careful", model_profile="large")
        dev, qa = read_councils(file)
        params = {"temperature": "0.2"}
        assert dev == council(careful, rounds=2, custom_params=params)
        names = [each.agent_id for each in qa.members]
        assert (qa.role, qa.peer_review, names) == (Role.QA, False, ["agent-qa-1", "agent-qa-2"])


class TestEndpoints:
    @table(
        ("found", "target"),
        [
            (["10.1.2.3"], "ipv4:10.1.2.3:7000"),
            (["fd12::1", "10.1.2.3", "10.1.2.4"], "ipv4:10.1.2.3:7000,10.1.2.4:7000"),
            (["10.1.2.3", "169.254.169.254"], ""),
            (["::ffff:169.254.169.254"], ""),
            (["fd00:ec2::254"], ""),
            ([], ""),
        ],
    )
    async def test_a_named_host_must_not_lead_to_the_machines_own_surroundings(
        self, found: list[str], target: str
    ) -> None:
        class Told:
            async def resolve(self, host: str, port: int) -> list[str]:
                assert (host, port) == ("agents.internal", 7000)
                return found

        rules = EndpointRules(patterns=("agents.internal:7000",))
        place = rules.check("agents.internal:7000")
        if target:
            assert await target_of(place, rules, Told()) == target
        else:
            with pytest.raises(AgentFault):
                await target_of(place, rules, Told())
