"""What an execution's tokens were spent on, by its log."""

from __future__ import annotations

from dataclasses import replace

from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.execution import AgentProgress, ExecutionState
from swe_ai_fleet.orchestrator.expenses import expenses
from swe_ai_fleet.orchestrator.run_names import CHECKLIST, ENVIRONMENT, judge_run, merge_run, review_run, revision_run
from swe_ai_fleet.testing.fleet import FAILED, PROVEN, ScriptedRun
from tests.unit.test_executions import World, a_task

ONE, TWO, THREE = "agent-dev-1", "agent-dev-2", "agent-dev-3"


def told(state: ExecutionState) -> dict[str, tuple[int, str]]:
    return {str(one.purpose): (one.runs, one.bought) for one in expenses(state)}


async def test_drafts_are_told_by_what_evidence_says_of_them() -> None:
    world = World()
    world.fleet.runs = {ONE: ScriptedRun(checks=(FAILED,)), TWO: ScriptedRun(checks=(PROVEN,))}
    state = await world.run(a_task(num_agents=3))
    assert told(state) == {"drafts": (3, "3 candidates, 1 verified, 1 refuted")}
    assert sum(one.usage.total_tokens for one in expenses(state)) == state.usage.total_tokens


async def test_every_run_stands_under_what_it_was_for_while_it_is_under_way_too() -> None:
    state = await World().run(a_task(num_agents=3))
    names = {
        "checklist": (CHECKLIST,),
        "environment": (ENVIRONMENT,),
        "reviews": (review_run(ONE, 1), review_run(ONE, 1, again=True), review_run(TWO, 1)),
        "revisions": (revision_run(ONE, 1),),
        "votes": (judge_run(THREE),),
        "merges": (merge_run("all", "a" * 40),),
    }
    spent = Usage(prompt_tokens=5)
    agents = {name: AgentProgress(agent_id=name, usage=spent) for found in names.values() for name in found}
    state = replace(state, agents={**state.agents, **agents})
    found = {str(one.purpose): one for one in expenses(state)}
    assert {name: found[name].runs for name in names} == {name: len(runs) for name, runs in names.items()}
    assert {found[name].usage.prompt_tokens for name in names} == {5, 15}
    assert found["drafts"].runs == 3
