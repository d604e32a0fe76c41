"""The domain's own rules: the fold over events, what a task must be, ids, the audit chain."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, verify
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import Artifacts, Candidate, CheckKind, CheckReport, CheckResult
from swe_ai_fleet.domain.command import Output
from swe_ai_fleet.domain.errors import Fenced, FleetError, InvalidRequest, ModelUnavailable
from swe_ai_fleet.domain.event import (
    EXECUTION_SUBJECT,
    CancelRequested,
    CandidatesRanked,
    CandidateSubmitted,
    ChecksFinished,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    ModelReplied,
    ResultPublished,
    RunFinished,
    RunLost,
    RunStarted,
    StoredEvent,
    ToolFinished,
    ToolStarted,
    Writer,
)
from swe_ai_fleet.domain.execution import ExecutionState, advance, fold
from swe_ai_fleet.domain.message import AssistantMessage, ModelReply
from swe_ai_fleet.domain.task import (
    MAX_DESCRIPTION_BYTES,
    CheckSpec,
    Constraints,
    Delivery,
    PinnedRepository,
    RepoRef,
    Role,
    Task,
    TaskKind,
    check_identifier,
    execution_id,
)
from swe_ai_fleet.domain.tool import Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason

TASK = Task(
    task_id="task-1",
    kind=TaskKind.DELIBERATE,
    description="Fix the bug.",
    repo=RepoRef(location="https://example.org/r.git"),
)
PINNED = PinnedRepository(tenant="default", location=TASK.repo.location, commit="c" * 40)
ENTRY = AuditEntry(
    seq=1,
    at="2026-01-01T00:00:00.000+00:00",
    execution_id="e",
    agent_id="agent-1",
    call_id="c",
    tool="files",
    operation="mkdir",
).sealed(GENESIS)
CANDIDATE = Candidate(
    candidate_id="candidate-1",
    agent_id="agent-1",
    role=Role.DEV,
    summary="Done.",
    stop_reason=StopReason.FINAL_ANSWER,
    artifacts=Artifacts(),
    usage=Usage(model_calls=1),
    audit_head=ENTRY.hash,
    submitted_at="2026-01-01T00:00:00.000+00:00",
)
REPLY = ModelReply(
    message=AssistantMessage(content="x"), finish_reason="stop", usage=Usage(prompt_tokens=10, model_calls=1)
)
RESULT = ToolResult(success=True, operation="files_mkdir")


def stored(*bodies: EventBody | tuple[str, EventBody]) -> list[StoredEvent]:
    """Bodies as the log would give them back; a pair names the agent that speaks, else the execution does."""
    events: list[StoredEvent] = []
    for number, item in enumerate(bodies, start=1):
        agent_id, body = item if isinstance(item, tuple) else (EXECUTION_SUBJECT, item)
        writer = Writer(tenant="default", execution_id=TASK.execution_id, task_id=TASK.task_id, agent_id=agent_id)
        event = writer.event(body, ordinal=number, at=f"2026-01-01T00:00:{number:02}.000+00:00")
        events.append(StoredEvent(sequence=number * 3, event=event))
    return events


STARTED = ExecutionStarted(task=TASK, repository=PINNED, fingerprint=TASK.fingerprint())
STORY = stored(
    STARTED,
    ExecutionClaimed(generation=1, owner="orchestrator-1"),
    ("agent-1", RunStarted(role="DEV", model="m", messages=(), tools=("files_mkdir",))),
    ("agent-2", RunStarted(role="DEV", model="m", messages=(), tools=())),
    ("agent-1", ModelReplied(step=1, reply=REPLY, duration_ms=5)),
    ("agent-1", ToolStarted(entry=replace(ENTRY, outcome=Outcome.STARTED))),
    ("agent-1", ToolFinished(entry=ENTRY, result=RESULT)),
    RunLost(lost_agent_id="agent-2", reason="its process died"),
    (
        "agent-1",
        RunFinished(
            stop_reason=StopReason.FINAL_ANSWER,
            artifacts=Artifacts(),
            usage=Usage(prompt_tokens=10, model_calls=1, tool_calls=1),
            audit_head=ENTRY.hash,
        ),
    ),
    CandidateSubmitted(candidate=CANDIDATE),
    ChecksFinished(report=CheckReport(candidate_id="candidate-1")),
    CandidatesRanked(ranking=(), winner_id="candidate-1"),
    ExecutionFinished(status=ExecutionStatus.COMPLETED, winner_id="candidate-1", duration_ms=9),
    ResultPublished(),
)


def state_of(events: list[StoredEvent]) -> ExecutionState:
    state = fold(events)
    assert state is not None
    return state


class TestFold:
    def test_a_whole_story(self) -> None:
        state = state_of(STORY)
        assert (state.execution_id, state.task, state.repository) == (TASK.execution_id, TASK, PINNED)
        assert (state.status, state.winner_id, state.generation) == (ExecutionStatus.COMPLETED, "candidate-1", 1)
        assert state.candidates == {"candidate-1": CANDIDATE}
        assert set(state.reports) == {"candidate-1"}
        one, two = state.agents["agent-1"], state.agents["agent-2"]
        assert (one.status, one.step, one.last_tool, one.last_outcome) == ("finished", 1, "files_mkdir", "success")
        assert (one.usage.prompt_tokens, one.usage.tool_calls, one.audit_head) == (10, 1, ENTRY.hash)
        assert (two.status, two.stop_reason) == ("lost", "lost")
        assert (state.started_at, state.finished_at) == (STORY[0].event.at, STORY[-2].event.at)
        assert (state.last_sequence, state.updated_at) == (STORY[-1].sequence, STORY[-1].event.at)
        assert state.result_published

    def test_nothing_happened_before_the_first_event(self) -> None:
        assert fold([]) is None
        assert fold(STORY[1:]) is None

    def test_the_execution_itself_is_no_agent(self) -> None:
        assert EXECUTION_SUBJECT not in state_of(STORY).agents

    @pytest.mark.parametrize(
        ("length", "status"),
        [(1, ExecutionStatus.PENDING), (2, ExecutionStatus.IN_PROGRESS), (12, ExecutionStatus.IN_PROGRESS)],
    )
    def test_the_status_on_the_way(self, length: int, status: ExecutionStatus) -> None:
        assert state_of(STORY[:length]).status is status

    def test_a_cancel_is_noted_without_ending_anything(self) -> None:
        state = state_of(stored(STARTED, CancelRequested(reason="enough")))
        assert state.cancel_requested
        assert not state.status.terminal

    def test_a_run_taken_up_again_starts_afresh(self) -> None:
        again = RunStarted(role="DEV", model="other", messages=(), tools=())
        events = stored(STARTED, RunLost(lost_agent_id="agent-1", reason="died"), ("agent-1", again))
        agent = state_of(events).agents["agent-1"]
        assert (agent.status, agent.model, agent.stop_reason) == ("running", "other", "")

    @given(repeats=st.lists(st.tuples(st.integers(0, len(STORY) - 1), st.integers(0, len(STORY) - 1)), max_size=20))
    def test_events_seen_before_change_nothing(self, repeats: list[tuple[int, int]]) -> None:
        events: list[StoredEvent] = []
        for number, event in enumerate(STORY):
            events.append(event)
            events += [STORY[old] for at, old in repeats if at == number and old <= number]
        assert fold(events) == fold(STORY)

    @given(cut=st.integers(0, len(STORY)))
    def test_a_fold_can_be_continued(self, cut: int) -> None:
        state = fold(STORY[:cut])
        for event in STORY[cut:]:
            state = advance(state, event)
        assert state == fold(STORY)

    def test_earlier_states_are_left_alone(self) -> None:
        early = state_of(STORY[:5])
        copy = replace(early)
        for event in STORY[5:]:
            advance(early, event)
        assert early == copy


def with_limits(**changes: float) -> Task:
    return replace(TASK, constraints=Constraints(limits=replace(Limits(), **changes)))  # type: ignore[arg-type]


def with_check(**changes: object) -> Task:
    check = replace(CheckSpec(name="tests", command="make test"), **changes)  # type: ignore[arg-type]
    return replace(TASK, constraints=Constraints(checks=(CheckSpec(name="fine", command="true"), check)))


class TestTaskValidation:
    def test_a_sound_task_is_itself(self) -> None:
        assert TASK.validated(max_agents=3) is TASK

    @pytest.mark.parametrize(
        ("task", "field"),
        [
            (replace(TASK, task_id=""), "task_id"),
            (replace(TASK, task_id="a b"), "task_id"),
            (replace(TASK, description=" \n"), "task_description"),
            (replace(TASK, description="\u00e9" * (MAX_DESCRIPTION_BYTES // 2 + 1)), "task_description"),
            (replace(TASK, repo=RepoRef(location=" ")), "repo"),
            (replace(TASK, delivery=Delivery(branch="-d")), "delivery.branch"),
            (replace(TASK, delivery=Delivery(branch="a..b")), "delivery.branch"),
            (replace(TASK, delivery=Delivery(branch="a/.hidden")), "delivery.branch"),
            (replace(TASK, delivery=Delivery(branch="x.lock")), "delivery.branch"),
            (replace(TASK, num_agents=-1), "num_agents"),
            (replace(TASK, num_agents=9), "num_agents"),
            (replace(TASK, rounds=-2), "rounds"),
            (replace(TASK, rounds=17), "rounds"),
            (replace(TASK, attempt=0), "attempt"),
            (with_limits(max_iterations=0), "constraints.max_iterations"),
            (with_limits(max_tool_calls=0), "constraints.max_tool_calls"),
            (with_limits(max_tokens=-1), "constraints.max_tokens"),
            (with_limits(timeout_seconds=0), "constraints.timeout_seconds"),
            (with_limits(timeout_seconds=float("nan")), "constraints.timeout_seconds"),
            (with_limits(timeout_seconds=float("inf")), "constraints.timeout_seconds"),
            (with_check(command="  "), "constraints.checks[1].command"),
            (with_check(timeout_seconds=0), "constraints.checks[1].timeout_seconds"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_each_bad_field_is_named(self, task: Task, field: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            task.validated(max_agents=8)
        assert caught.value.field == field

    @pytest.mark.parametrize("text", ["a", "A.b_c-9", "x" * 128, "0"])
    def test_identifiers_that_may_stand_in_subjects_and_branches(self, text: str) -> None:
        assert check_identifier(text, field="task_id") == text

    @pytest.mark.parametrize(
        "text", ["", "x" * 129, "-a", ".a", "a..b", "a.", "a.lock", "a/b", "a*", "a>", "\u00e4", "a\n", "a b"]
    )
    def test_identifiers_that_may_not(self, text: str) -> None:
        with pytest.raises(InvalidRequest, match="is not a valid id"):
            check_identifier(text, field="task_id")

    @pytest.mark.parametrize(
        ("text", "role"), [("", Role.DEV), ("dev", Role.DEV), ("Developer", Role.DEV), (" qa ", Role.QA)]
    )
    def test_roles_in_any_case(self, text: str, role: Role) -> None:
        assert Role.parse(text) is role

    def test_an_unknown_role_is_answered_with_the_known(self) -> None:
        with pytest.raises(InvalidRequest, match=r"(?s)unknown role 'CEO'.*ARCHITECT") as caught:
            Role.parse("CEO")
        assert caught.value.field == "role"


class TestIdentity:
    def test_the_execution_id_is_for_ever(self) -> None:
        assert TASK.execution_id == "d87efd6c-0651-53d3-870c-3619b4bf2e2d"

    @given(
        one=st.tuples(st.text(max_size=5), st.sampled_from(TaskKind), st.text(max_size=5), st.integers(1, 20)),
        other=st.tuples(st.text(max_size=5), st.sampled_from(TaskKind), st.text(max_size=5), st.integers(1, 20)),
    )
    def test_it_tells_tenant_kind_task_and_attempt_apart(
        self, one: tuple[str, TaskKind, str, int], other: tuple[str, TaskKind, str, int]
    ) -> None:
        def identify(key: tuple[str, TaskKind, str, int]) -> str:
            tenant, kind, task_id, attempt = (
                part.replace("\x1f", "") if isinstance(part, str) else part for part in key
            )
            return execution_id(tenant=str(tenant), kind=TaskKind(kind), task_id=str(task_id), attempt=int(attempt))

        plain_one, plain_other = (tuple(str(part).replace("\x1f", "") for part in key) for key in (one, other))
        assert (identify(one) == identify(other)) == (plain_one == plain_other)

    @pytest.mark.parametrize(
        "change",
        [{"description": "Fix it."}, {"num_agents": 2}, {"role": Role.QA}, {"constraints": Constraints(rubric="x")}],
    )
    def test_the_fingerprint_tells_other_content(self, change: dict[str, object]) -> None:
        assert replace(TASK, **change).fingerprint() != TASK.fingerprint()  # type: ignore[arg-type]
        assert replace(TASK).fingerprint() == TASK.fingerprint()

    def test_an_event_id_says_who_spoke_when(self) -> None:
        writer = Writer(tenant="default", execution_id="e", task_id="t", agent_id="agent-1", generation=2)
        assert writer.event(CancelRequested(), ordinal=7, at="").id == "e/agent-1/2/7"


def chain(length: int) -> list[AuditEntry]:
    entries: list[AuditEntry] = []
    for number in range(length):
        previous = entries[-1].hash if entries else GENESIS
        entries.append(replace(ENTRY, seq=number + 1, arguments={"path": f"\u00e9{number}\ud800"}).sealed(previous))
    return entries


class TestAuditChain:
    def test_an_empty_chain_is_whole_and_its_head_is_known(self) -> None:
        assert verify([]) is None
        assert verify([], head=GENESIS) is None
        assert verify([], head="f" * 64) is not None

    def test_a_hash_can_be_computed_elsewhere(self) -> None:
        assert ENTRY.hash == "064dc899dd23596d55c6c50614d0ae3eafd950d2a77a00b2f38f8c3d07bf3a3d"

    @given(
        length=st.integers(1, 8),
        data=st.data(),
        change=st.sampled_from(
            ["seq", "at", "agent_id", "tool", "arguments", "decision", "outcome", "exit_code", "prev_hash", "hash"]
        ),
    )
    def test_any_change_is_found_at_its_place(self, length: int, data: st.DataObject, change: str) -> None:
        entries = chain(length)
        at = data.draw(st.integers(0, length - 1))
        other: dict[str, object] = {
            "seq": 99,
            "arguments": {"path": "x"},
            "decision": "refused",
            "outcome": "error",
            "exit_code": 1,
        }
        entries[at] = replace(entries[at], **{change: other.get(change, "0" * 63 + "1")})  # type: ignore[arg-type]
        fault = verify(entries)
        assert fault is not None
        assert fault.seq == (99 if change == "seq" else at + 1)

    @given(length=st.integers(2, 8), data=st.data())
    def test_dropping_swapping_and_cutting_are_found(self, length: int, data: st.DataObject) -> None:
        entries, head = chain(length), chain(length)[-1].hash
        at = data.draw(st.integers(0, length - 2))
        assert verify(entries[:at] + entries[at + 1 :]) is not None
        assert verify([*entries[:at], entries[at + 1], entries[at], *entries[at + 2 :]]) is not None
        assert verify(entries[:-1]) is None
        assert verify(entries[:-1], head=head) is not None


class TestSmallRules:
    @pytest.mark.parametrize("make", [FleetError, InvalidRequest, Fenced, ModelUnavailable])
    def test_faults_survive_a_process_boundary(self, make: Callable[..., FleetError]) -> None:
        back = pickle.loads(pickle.dumps(make("it broke", field="repo", hint="try again")))
        assert type(back) is make
        assert (str(back), back.field, back.hint) == ("it broke (try again)", "repo", "try again")

    def test_usage_adds_up(self) -> None:
        total = Usage(prompt_tokens=1, completion_tokens=2, model_calls=1) + Usage(prompt_tokens=10, tool_calls=3)
        assert (total.prompt_tokens, total.total_tokens, total.model_calls, total.tool_calls) == (11, 13, 1, 3)

    @pytest.mark.parametrize(
        ("results", "accepted"),
        [
            ([], False),
            ([(True, True, "")], True),
            ([(True, True, ""), (False, True, "")], False),
            ([(True, True, ""), (False, False, "")], True),
            ([(True, True, "no tests")], False),
            ([(True, True, ""), (False, True, "no linter")], True),
            ([(True, False, "")], False),
        ],
    )
    def test_a_report_is_accepted_on_evidence_only(self, results: list[tuple[bool, bool, str]], accepted: bool) -> None:
        checks = tuple(
            CheckResult(kind=CheckKind.COMMAND, name=str(n), passed=passed, required=required, skipped_reason=skipped)
            for n, (passed, required, skipped) in enumerate(results)
        )
        assert CheckReport(candidate_id="c", results=checks).accepted is accepted

    def test_output_says_what_it_left_out(self) -> None:
        assert Output(head=b"ab", tail=b"yz", total=10).text() == "ab\n[... 6 bytes left out ...]\nyz"
        assert Output(head=b"\xc3", tail=b"\xa9", total=2).text() == "\u00e9"

    def test_an_observation_is_never_empty(self) -> None:
        assert RESULT.observation() == "files_mkdir succeeded and printed nothing."
        failed = ToolResult(success=False, operation="x", error="no", content="partly", outcome=Outcome.ERROR)
        assert failed.observation() == "Error: no\npartly"
        assert ToolResult(success=False, operation="x", outcome=Outcome.TIMEOUT).observation() == "Error: timeout"

    def test_audit_entries_have_one_canonical_form(self) -> None:
        one = replace(ENTRY, arguments={"a": 1, "b": 2})
        assert one.digest() == replace(ENTRY, arguments={"b": 2, "a": 1}).digest()
        json.dumps(dict(one.arguments))
