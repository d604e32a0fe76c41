"""Trajectories in ATIF: the published package reads them, and says the same again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atif import Trajectory

from swe_ai_fleet.agents.atif import trajectory
from swe_ai_fleet.agents.exports import whole_run
from swe_ai_fleet.codec import from_json
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.event import Event, ModelReplied, RunStarted, StoredEvent, ToolFinished
from swe_ai_fleet.domain.execution import ExecutionState, fold
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply, ToolCall
from swe_ai_fleet.domain.run import SUB_AGENT
from tests.tables import table
from tests.unit.test_golden_logs import LOGS, WHOLE


def events_of(version: str, name: str) -> list[Event]:
    lines = (LOGS / version / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [from_json(Event, line.encode()) for line in lines]


def state_of(events: Sequence[Event]) -> ExecutionState:
    state = fold(StoredEvent(sequence=number, event=event) for number, event in enumerate(events, start=1))
    assert state is not None
    return state


def read(events: Sequence[Event], agent_id: str) -> dict[str, Any]:
    """One agent's trajectory as JSON, accepted by the published package and given back by it as it was."""
    written = trajectory(state_of(events), whole_run(events, agent_id), events)
    document: dict[str, Any] = json.loads(json.dumps(written))
    again = Trajectory.model_validate(document).model_dump(mode="json", exclude_unset=True)
    assert again == document
    return document


@table(("version", "name"), WHOLE)
def test_every_recorded_run_is_a_trajectory(version: str, name: str) -> None:
    events = events_of(version, name)
    agents = {event.agent_id for event in events if isinstance(event.body, RunStarted)}
    for agent_id in agents:
        document, run = read(events, agent_id), whole_run(events, agent_id)
        replies = [step for step in document["steps"] if "metrics" in step]
        assert len(replies) == len([step for step in run.steps if step.number])
        assert sum(step["metrics"]["prompt_tokens"] for step in replies) == run.usage.prompt_tokens
        asked = [call["tool_call_id"] for step in replies for call in step.get("tool_calls", ())]
        answered = [
            result["source_call_id"]
            for step in replies
            if "observation" in step
            for result in step["observation"]["results"]
        ]
        assert answered == asked[: len(answered)] and len(asked) - len(answered) <= 1


def test_the_winner_is_rewarded_for_what_evidence_showed() -> None:
    events = events_of("v0.1.0", "orchestrated")
    state = state_of(events)
    document = read(events, state.candidates[state.winner_id].agent_id)
    extra = document["extra"]
    assert extra["winner"] and extra["rank"] == 1
    report = state.reports[state.winner_id]
    assert extra["verdict"] == report.verdict_word
    assert {check["name"] for check in extra["checks"]} == {
        result.name for result in report.results if not result.skipped_reason
    }


def test_what_had_waited_for_a_person_is_copied_context() -> None:
    events = events_of("v0.1.0", "asked")
    agent = next(event.agent_id for event in events if isinstance(event.body, RunStarted))
    number = next(n for n, event in enumerate(events) if isinstance(event.body, ModelReplied))
    body = events[number].body
    assert isinstance(body, ModelReplied)
    began = next(event.body for event in events if isinstance(event.body, RunStarted) and event.agent_id == agent)
    again = replace(
        next(event for event in events if event.body is began),
        body=replace(began, messages=(*began.messages, body.reply.message)),
    )
    document = read([*events[: number + 1], again], agent)
    assert {step["source"] for step in document["steps"]} == {"system", "user", "agent"}
    assert all(step.get("is_copied_context") for step in document["steps"])


def test_a_sub_agent_and_unreadable_arguments_are_told_as_far_as_they_are_known() -> None:
    events = events_of("v0.1.0", "orchestrated")
    state = state_of(events)
    agent = state.candidates[state.winner_id].agent_id
    replied = next(e for e in events if e.agent_id == agent and isinstance(e.body, ModelReplied))
    finished = next(e for e in events if e.agent_id == agent and isinstance(e.body, ToolFinished))
    assert isinstance(replied.body, ModelReplied) and isinstance(finished.body, ToolFinished)
    calls = tuple(
        ToolCall(call_id=name, model_call_id=name, name="research", arguments=arguments)
        for name, arguments in (("one", '{"goal": "Who calls it?"}'), ("two", "who calls it"))
    )
    reply = ModelReply(message=AssistantMessage(tool_calls=calls), finish_reason="tool_calls", usage=Usage())
    did = {"name": "research", "usage": {"prompt_tokens": 7, "model_calls": 2}}
    result = replace(finished.body.result, content="Nobody.", metadata={SUB_AGENT: did})
    told = replace(finished.body, entry=replace(finished.body.entry, call_id="one"), result=result)
    document = read(
        [
            *(event for event in events if event.agent_id != agent or isinstance(event.body, RunStarted)),
            replace(replied, body=replace(replied.body, reply=reply)),
            replace(finished, body=told),
        ],
        agent,
    )
    [step] = [step for step in document["steps"] if step["source"] == "agent"]
    assert [call["arguments"] for call in step["tool_calls"]] == [{"goal": "Who calls it?"}, {}]
    assert step["tool_calls"][1]["extra"] == {"arguments_as_written": "who calls it"}
    [sub_agent] = document["subagent_trajectories"]
    [reference] = step["observation"]["results"][0]["subagent_trajectory_ref"]
    assert reference["trajectory_id"] == sub_agent["trajectory_id"]
    assert [said["message"] for said in sub_agent["steps"]] == ['{"goal": "Who calls it?"}', "Nobody."]
    assert sub_agent["steps"][1]["metrics"]["prompt_tokens"] == 7 and sub_agent["steps"][1]["llm_call_count"] == 2
