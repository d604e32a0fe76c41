"""What settings make of models: profiles that candidates take in turn, prices that end a run, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.budget import Totals
from swe_ai_fleet.domain.errors import InvalidRequest
from swe_ai_fleet.domain.message import ModelRequest, UserMessage
from swe_ai_fleet.domain.task import Constraints, Limits, PinnedRepository, RepoRef, Task, TaskKind
from swe_ai_fleet.orchestrator.councils import assignments
from swe_ai_fleet.runtime.equipment import open_equipment
from swe_ai_fleet.settings import Settings
from swe_ai_fleet.testing import Script, ScriptedModelServer, Turn
from swe_ai_fleet.tools.audit import AuditTrail

TASK = Task(
    task_id="t", kind=TaskKind.DELIBERATE, description="Say who you are.", repo=RepoRef(location="/r"), num_agents=3
)
PINNED = PinnedRepository(tenant="default", location="/r", commit="c" * 40)


@pytest.fixture
async def large() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(Script.of(Turn(content="large")), model="large") as server:
        yield server


@pytest.fixture
async def small() -> AsyncIterator[ScriptedModelServer]:
    async with ScriptedModelServer(Script.of(Turn(content="small")), model="small", api_key="k-small") as server:
        yield server


async def test_candidates_take_the_profiles_in_turn(large: ScriptedModelServer, small: ScriptedModelServer) -> None:
    profiles = {"small": {"url": small.url, "model": "small", "api_key": "k-small"}, "large": {}}
    settings = Settings(model_url=large.url, model="large", model_profiles=profiles)
    task = replace(TASK, model_profile="small, large")
    async with open_equipment(settings) as equipment:
        answers: list[str] = []
        for assignment in assignments(task, PINNED):
            trail = AuditTrail(execution_id=assignment.execution_id, agent_id=assignment.agent_id)
            model = equipment.model(task, assignment.perspective, trail)
            reply = await model.reply(ModelRequest((UserMessage(content=task.description),)))
            answers.append(reply.message.content)
    assert answers == ["small", "large", "small"]


@given(
    st.integers(1, 300),
    st.builds(Limits, max_tokens=st.integers(0, 10**6), max_tool_calls=st.integers(1, 500), max_cost=st.floats(0, 100)),
    st.builds(
        Totals, max_tokens=st.integers(300, 10**6), max_tool_calls=st.integers(300, 10**5), max_cost=st.floats(0.1, 100)
    ),
)
def test_candidates_together_stay_within_the_task(parts: int, own: Limits, totals: Totals) -> None:
    share = totals.share(own, parts=parts)
    assert 1 <= share.max_tokens * parts <= totals.max_tokens
    assert 1 <= share.max_tool_calls * parts <= totals.max_tool_calls
    assert 0 < share.max_cost * parts <= totals.max_cost * 1.000001
    assert share.max_tool_calls <= own.max_tool_calls
    assert not own.max_tokens or share.max_tokens <= own.max_tokens


def test_a_total_that_leaves_an_agent_nothing_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        replace(TASK, constraints=Constraints(totals=Totals(max_tool_calls=2))).validated(max_agents=3)
    assert caught.value.field == "constraints.total_max_tool_calls"
