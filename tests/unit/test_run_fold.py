"""An agent run folded from its events: exactly what the model saw, from whatever prefix of them there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.agents.history import History
from swe_ai_fleet.domain import event as ev
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import AuditEntry
from swe_ai_fleet.domain.budget import Usage
from swe_ai_fleet.domain.candidate import Artifacts
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    Message,
    ModelReply,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from swe_ai_fleet.domain.run import INTERRUPTED, SUB_AGENT, RunState, fold_run, interrupted, sub_agent_usage
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import Plan, PlanStep, StopReason
from tests.sampling import sample

AGENT = "agent-dev-1"
OPENING: tuple[Message, ...] = (SystemMessage(content="s"), UserMessage(content="u"))


def events(bodies: list[ev.EventBody], *, agent_id: str = AGENT) -> list[ev.Event]:
    writer = ev.Writer(tenant="default", execution_id="e", task_id="t", agent_id=agent_id)
    return [
        writer.event(body, ordinal=number, at=f"2026-01-01T00:{number // 60:02}:{number % 60:02}+00:00")
        for number, body in enumerate(bodies)
    ]


def reply(number: int, *call_ids: str) -> ev.ModelReplied:
    calls = tuple(ToolCall(call_id=one, model_call_id=one, name="files_write_file", arguments="{}") for one in call_ids)
    message = AssistantMessage(content=f"reply {number}", tool_calls=calls)
    usage = Usage(prompt_tokens=10, completion_tokens=1, model_calls=1)
    return ev.ModelReplied(
        step=number, reply=ModelReply(message=message, finish_reason="tool_calls", usage=usage), duration_ms=1
    )


def entry(call_id: str, outcome: Outcome = Outcome.SUCCESS) -> AuditEntry:
    return sample(AuditEntry, call_id=call_id, tool="files", operation="write_file", outcome=outcome)


def started(call_id: str) -> ev.ToolStarted:
    return ev.ToolStarted(entry=entry(call_id, Outcome.STARTED))


def finished(call_id: str, text: str = "") -> ev.ToolFinished:
    result = ToolResult(success=True, operation="files_write_file", content=text or f"wrote {call_id}")
    return ev.ToolFinished(entry=entry(call_id), result=result)


def folded(*bodies: ev.EventBody) -> RunState:
    return fold_run(events([*BEGIN, *bodies]), AGENT)


def asked(**usage: Any) -> ev.ApprovalRequested:
    """A question of its own, about a plan."""
    request = sample(ApprovalRequest, approval_id="p1", agent_id=AGENT)
    return ev.ApprovalRequested(request=request, usage=Usage(**usage))


def said(text: str) -> ev.MessageAdded:
    return ev.MessageAdded(step=1, message=UserMessage(content=text))


BEGIN: list[ev.EventBody] = [
    ev.RunClaimed(generation=1, host="h"),
    ev.RunStarted(role="DEV", model="m", messages=OPENING, tools=()),
]


def test_observations_stand_in_the_order_of_the_calls_whatever_ended_first():
    state = folded(reply(1, "a", "b"), finished("b"), finished("a"), said("go on"))
    assert [message.content for message in state.messages] == ["s", "u", "reply 1", "wrote a", "wrote b", "go on"]
    assert [seen.call_id for seen in state.steps[0].observations] == ["a", "b"]
    assert state.usage.tool_calls == 2
    assert state.usage.total_tokens == 11
    assert [state.observed(call_id) for call_id in "abc"] == [True, True, False]


def test_what_the_model_was_told_wins_over_what_the_tool_gave():
    told = ev.MessageAdded(step=1, message=ToolMessage(call_id="a", content="Approved by ada.\nwrote a"))
    answer = ev.MessageAdded(step=2, message=ToolMessage(call_id="b", content="Error: final_answer needs its text."))
    state = folded(reply(1, "a"), finished("a"), told, reply(2, "b"), answer)
    assert [message.content for message in state.messages[3::2]] == [
        "Approved by ada.\nwrote a",
        answer.message.content,
    ]
    assert state.steps[0].observations[0].result.content == "wrote a"
    assert not state.steps[1].observations[0].result.success
    assert state.usage.tool_calls == 2


def test_what_began_and_never_ended_dangles():
    state = folded(reply(1, "a", "b", "c"), started("a"), finished("a"), started("b"))
    assert list(state.dangling) == ["b"]
    assert [call.call_id for call in History(state.messages).unanswered()] == ["b", "c"]
    assert [one.call_id for one in state.lost] == ["a", "b"]


def test_a_resumed_run_goes_on_and_a_new_one_begins_anew():
    first: list[ev.EventBody] = [*BEGIN, reply(1, "a"), started("a"), finished("a"), reply(2, "b"), started("b")]
    cut_off = ev.ToolFinished(
        entry=entry("b", Outcome.INTERRUPTED),
        result=ToolResult(success=False, operation="x", error="interrupted", outcome=Outcome.INTERRUPTED),
    )
    resumed = fold_run(
        events([*first, ev.RunClaimed(generation=2, host="h", resumes=True), cut_off, reply(3, "c"), finished("c")]),
        AGENT,
    )
    assert [message.content for message in resumed.messages] == [
        *("s", "u", "reply 1", "wrote a", "reply 2", "Error: interrupted", "reply 3", "wrote c")
    ]
    assert (resumed.generation, len(resumed.entries), len(resumed.steps)) == (2, 5, 3)
    assert not resumed.dangling
    anew = fold_run(events([*first, ev.RunClaimed(generation=2, host="h")]), AGENT)
    assert (anew.generation, anew.messages, anew.entries, anew.started) == (2, (), (), None)


def test_what_an_earlier_run_asked_for_is_answered_in_a_step_before_the_first():
    waiting = reply(1, "a", "b").reply.message
    begun = ev.RunStarted(role="DEV", model="m", messages=(*OPENING, waiting), tools=())
    state = fold_run(events([ev.RunClaimed(generation=1, host="h"), begun, finished("a"), reply(1, "c")]), AGENT)
    first, second = state.steps
    assert (first.number, first.reply, first.usage, second.number) == (0, waiting, Usage(), 1)
    assert [one.call_id for one in first.observations] == ["a", "b"]
    # A conversation that ends otherwise has no such step.
    assert not folded().steps and not fold_run(events([ev.RunClaimed(generation=1, host="h")]), AGENT).steps
    answered = replace(begun, messages=(*OPENING, reply(1).reply.message))
    assert not fold_run(events([ev.RunClaimed(generation=1, host="h"), answered]), AGENT).steps


def test_a_condensed_conversation_replaces_the_one_before():
    short = (SystemMessage(content="s"), UserMessage(content="summary"))
    condensed = ev.HistoryCondensed(step=2, method="summary", messages=short, tokens_before=9, tokens_after=3)
    state = folded(reply(1, "a"), finished("a"), condensed, reply(2, "b"))
    assert [message.content for message in state.messages] == ["s", "summary", "reply 2"]
    assert len(state.steps) == 2
    assert state.observed("a")


def test_the_time_that_people_took_does_not_count():
    question = asked(model_calls=1, cost=0.5, duration_ms=1500)
    before = events([*BEGIN, reply(1, "a"), question])
    later = events([*([said("")] * 3000), ev.RunClaimed(generation=2, host="h", resumes=True), finished("a")])[-2:]
    later = [
        replace(event, at=f"2026-01-02T00:00:0{number}+00:00", body=event.body) for number, event in enumerate(later)
    ]
    state = fold_run([*before, *later], AGENT)
    assert state.usage.duration_ms == 2500
    assert state.usage.cost == 0.5
    assert list(state.requests) == ["p1"]


def test_a_checkpoint_makes_what_came_before_it_safe():
    kept = ev.WorkspaceCheckpointed(step=1, revision=1, commit="c", head="c")
    state = folded(reply(1, "a"), started("a"), finished("a"), kept, reply(2, "b"), started("b"))
    assert state.checkpoint == kept
    assert [one.call_id for one in state.lost] == ["b"]


def test_a_reply_whose_calls_got_no_answer_is_closed_by_saying_so():
    state = folded(reply(1, "a", "b"), finished("b"), said("go on"), reply(2))
    lacking = state.messages[3]
    assert isinstance(lacking, ToolMessage)
    assert (lacking.call_id, lacking.content) == ("b", "wrote b")
    made_up = state.messages[4]
    assert isinstance(made_up, ToolMessage)
    assert made_up.call_id == "a"
    assert INTERRUPTED in made_up.content
    assert [(seen.call_id, seen.result.outcome) for seen in state.steps[0].observations] == [
        ("a", Outcome.INTERRUPTED),
        ("b", Outcome.SUCCESS),
    ]
    assert interrupted("files_write_file") == state.steps[0].observations[0].result
    assert not interrupted("x").success


def test_an_observation_without_a_result_is_read_from_its_words():
    def told(call_id: str, text: str) -> ev.MessageAdded:
        return ev.MessageAdded(step=1, message=ToolMessage(call_id=call_id, content=text))

    state = folded(reply(1, "a", "b"), told("a", "Error: no such file"), told("b", "noted"))
    failed, fine = (seen.result for seen in state.steps[0].observations)
    assert (failed.success, failed.error, failed.outcome) == (False, "no such file", Outcome.ERROR)
    assert (fine.success, fine.content, fine.operation) == (True, "noted", "files_write_file")


def test_how_a_run_began_what_it_plans_and_how_it_ended_is_known():
    plan = Plan(steps=(PlanStep(tool="files", operation="read_file"),))
    end = ev.RunFinished(stop_reason=StopReason.CANCELLED, artifacts=Artifacts(), usage=Usage(), audit_head="")
    bodies: list[ev.EventBody] = [*BEGIN, ev.PlanMade(step=1, plan=plan), reply(1), end]
    state = fold_run(events(bodies), AGENT)
    assert (state.started, state.plan, state.finished) == (BEGIN[1], plan, end)
    # It was interrupted, not over: whoever takes it up goes on.
    on = fold_run(events([*bodies, ev.RunClaimed(generation=2, host="h", resumes=True), reply(2)]), AGENT)
    assert (on.finished, on.plan) == (None, plan)


def test_repairs_stand_at_the_call_that_was_repaired():
    repaired = ev.CallRepaired(step=1, repairs=("a name was mended",), call_id="b")
    unknown = ev.CallRepaired(step=1, repairs=("?",), call_id="z")
    state = folded(reply(1, "a", "b"), repaired, unknown, finished("a"), finished("b"))
    assert [seen.repairs for seen in state.steps[0].observations] == [(), ("a name was mended",)]


def test_the_first_decision_about_a_request_of_its_own_counts():

    def decided(name: str, text: str) -> ev.ApprovalResolved:
        decision = ApprovalDecision.APPROVED
        return ev.ApprovalResolved(resolution=ApprovalResolution(approval_id=name, decision=decision, text=text))

    state = fold_run(
        [
            *events([*BEGIN, reply(1, "a"), asked()]),
            *events([decided("p1", "go"), decided("p1", "stop"), decided("p2", "?")], agent_id="_"),
        ],
        AGENT,
    )
    assert {name: one.text for name, one in state.resolutions.items()} == {"p1": "go"}
    anew = fold_run(
        [*events([*BEGIN, reply(1, "a"), asked()]), *events([ev.RunClaimed(generation=2, host="h")])], AGENT
    )
    assert (dict(anew.requests), dict(anew.resolutions)) == ({}, {})


def test_what_a_sub_agent_spent_is_spent():
    usage = {"prompt_tokens": 7, "model_calls": 2, "cost": 0.25, "duration_ms": 900, "odd": 1, "tool_calls": "many"}
    result = ToolResult(success=True, operation="x", content="done", metadata={SUB_AGENT: {"usage": usage}})
    assert sub_agent_usage(result) == Usage(prompt_tokens=7, model_calls=2, cost=0.25)
    one = ev.ToolFinished(entry=entry("a"), result=result)
    state = folded(reply(1, "a"), one)
    assert (state.usage.prompt_tokens, state.usage.model_calls, state.usage.cost) == (17, 3, 0.25)
    assert (state.usage.tool_calls, state.usage.duration_ms) == (1, 3000)
    without = ev.ToolFinished(entry=entry("a"), result=replace(result, metadata={SUB_AGENT: "?"}))
    assert folded(reply(1, "a"), without).usage.model_calls == 1


@st.composite
def runs(draw: st.DrawFn) -> list[ev.EventBody]:
    """The events of a run, as a loop with parallel tools, reminders, condensations and restarts writes them."""
    bodies: list[ev.EventBody] = list(BEGIN)
    number = 0
    for number in range(1, draw(st.integers(0, 5)) + 1):
        calls = [f"c{number}.{index}" for index in range(draw(st.integers(0, 3)))]
        bodies.append(reply(number, *calls))
        ends: list[ev.EventBody] = []
        for call_id in draw(st.permutations(calls)):
            match draw(st.integers(0, 3)):
                case 0:
                    bodies.append(started(call_id))
                    ends.append(finished(call_id))
                case 1:
                    ends.append(finished(call_id))
                case 2:
                    ends.append(ev.MessageAdded(step=number, message=ToolMessage(call_id=call_id, content="told")))
                case _:
                    ends.append(finished(call_id))
                    ends.append(ev.MessageAdded(step=number, message=ToolMessage(call_id=call_id, content="noted")))
        bodies.extend(ends)
        if draw(st.booleans()):
            bodies.append(said("reminder"))
        if draw(st.integers(0, 5)) == 0:
            bodies.append(
                ev.HistoryCondensed(step=number, method="reset", messages=OPENING, tokens_before=2, tokens_after=1)
            )
    if draw(st.booleans()):
        bodies.append(
            ev.RunFinished(stop_reason=StopReason.CANCELLED, artifacts=Artifacts(), usage=Usage(), audit_head="")
        )
    return bodies


def check(messages: tuple[Message, ...]) -> None:
    """Each call is answered once, right behind its reply; only those of the last reply may still be open."""
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            assert message.call_id in open_calls
            open_calls.remove(message.call_id)
        else:
            assert not open_calls
            if isinstance(message, AssistantMessage):
                open_calls = [call.call_id for call in message.tool_calls]
    assert sorted(open_calls) == sorted(call.call_id for call in History(messages).unanswered())


@given(st.data())
def test_any_prefix_folds_to_a_well_formed_history(data: st.DataObject):
    first = data.draw(runs())
    first = first[: data.draw(st.integers(0, len(first)))]
    rest: list[ev.EventBody] = []
    if first and data.draw(st.booleans()):
        # Cut off, resumed, cut off again.
        rest = [ev.RunClaimed(generation=2, host="h", resumes=True)]
        state = fold_run(events(first), AGENT)
        for call_id in state.dangling:
            result = ToolResult(success=False, operation="x", error="gone", outcome=Outcome.INTERRUPTED)
            rest.append(ev.ToolFinished(entry=entry(call_id, Outcome.INTERRUPTED), result=result))
        rest += [
            finished(call.call_id)
            for call in History(state.messages).unanswered()
            if call.call_id not in state.dangling
        ]
        rest += [reply(9, "z1", "z2"), finished("z2")]
        rest = rest[: data.draw(st.integers(0, len(rest)))]
    state = fold_run(events([*first, *rest]), AGENT)
    check(state.messages)
    for step in state.steps:
        asked = [call.call_id for call in step.reply.tool_calls]
        seen = [observation.call_id for observation in step.observations]
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(asked)
    assert state.usage.model_calls == sum(isinstance(body, ev.ModelReplied) for body in (*first, *rest))


def test_the_time_between_two_hosts_does_not_count():
    first = events([*BEGIN, reply(1, "a")])
    later = [
        replace(event, at=f"2026-01-01T02:00:0{number}+00:00")
        for number, event in enumerate(events([ev.RunClaimed(generation=2, host="h", resumes=True), finished("a")]))
    ]
    assert fold_run([*first, *later], AGENT).usage.duration_ms == 2000 + 1000
