"""What was written must be readable for ever: golden payloads of every kind of event, and round trips.

`python tests/unit/test_codec.py` writes the golden files of kinds that have none yet. A file that is there is never
rewritten: it is what some log out there holds.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_ai_fleet.codec import from_json, from_plain, to_json, to_plain
from swe_ai_fleet.domain.approval import ApprovalDecision, ApprovalRequest, ApprovalResolution
from swe_ai_fleet.domain.audit import GENESIS, AuditEntry, SignedHead, verify
from swe_ai_fleet.domain.baseline import Baseline, SuiteBaseline
from swe_ai_fleet.domain.blob import BlobRef
from swe_ai_fleet.domain.budget import Limits, Usage
from swe_ai_fleet.domain.candidate import (
    Artifacts,
    Candidate,
    CheckKind,
    CheckReport,
    CheckResult,
    Delivered,
    ForeignTests,
    RankedCandidate,
)
from swe_ai_fleet.domain.candidate import TestSummary as Summary
from swe_ai_fleet.domain.checklist import Checklist, Requirement
from swe_ai_fleet.domain.context import ContextBlock, GatheredContext
from swe_ai_fleet.domain.council import Council, CouncilMember
from swe_ai_fleet.domain.environment_run import EnvironmentProposal, EnvironmentRun
from swe_ai_fleet.domain.event import (
    ApprovalAwaited,
    ApprovalRefused,
    ApprovalRequested,
    ApprovalResolved,
    AuditHeadSigned,
    BaselineFinished,
    BreakpointsSet,
    CallRepaired,
    CancelRequested,
    CandidateDelivered,
    CandidateReviewed,
    CandidateScored,
    CandidatesExamined,
    CandidatesRanked,
    CandidateSubmitted,
    ChecklistMade,
    ChecksFinished,
    ChecksStarted,
    ContextGathered,
    EnvironmentRunFinished,
    Event,
    EventBody,
    ExecutionClaimed,
    ExecutionFinished,
    ExecutionStarted,
    ExecutionStatus,
    HistoryCondensed,
    LoopNoticed,
    MessageAdded,
    ModelReplied,
    NodeUpdated,
    PlanMade,
    RefusedKept,
    ResultPublished,
    RevisionJudged,
    RunClaimed,
    RunFinished,
    RunLost,
    RunReassigned,
    RunStarted,
    RunStopped,
    StoredEvent,
    SubtaskEnded,
    SubtasksDerived,
    SubtaskStarted,
    ToolFinished,
    ToolStarted,
    VotesCast,
    WinnerDelivered,
    WorkflowFinished,
    WorkspaceCheckpointed,
    WorkspaceNotKept,
    Writer,
)
from swe_ai_fleet.domain.examination import Conflict, Crossing, Examination, ForeignFailure
from swe_ai_fleet.domain.examination import TestSet as ExaminedTests
from swe_ai_fleet.domain.memory import Memory, MemoryKind, Recollection
from swe_ai_fleet.domain.message import (
    AssistantMessage,
    ModelReply,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from swe_ai_fleet.domain.plan import OnFailure, Plan, PlanStep
from swe_ai_fleet.domain.review import Critique, Finding, ReviewVerdict, VerifierScore, Vote
from swe_ai_fleet.domain.subtask import Derivation, Subtask, SubtaskOutcome
from swe_ai_fleet.domain.task import (
    ApprovalPolicy,
    CheckSpec,
    Constraints,
    Delivery,
    EnvironmentSpec,
    PinnedRepository,
    RepoRef,
    Role,
    SubmittedPatch,
    Task,
    TaskKind,
    UncommittedChanges,
)
from swe_ai_fleet.domain.tool import Decision, Outcome, ToolResult
from swe_ai_fleet.domain.trajectory import StopReason
from swe_ai_fleet.domain.verdict import Verdict
from swe_ai_fleet.domain.workflow import NodeStatus

GOLDEN = Path(__file__).parent / "golden"
AT = "2026-01-02T03:04:05.678+00:00"


def representatives() -> list[EventBody]:
    """One body of each kind with every field set to something that is not its default."""
    digest = "d" * 64
    blob = BlobRef(name=f"default/e/{digest}", digest=digest, size=1234, media_type="text/x-diff")
    usage = Usage(
        prompt_tokens=100, completion_tokens=20, cached_tokens=60, model_calls=3, tool_calls=2, duration_ms=4500
    )
    tests = Summary(passed=9, failed=1, errors=1, skipped=2, duration_ms=321, failing=("tests/test_a.py::test_b",))
    task = Task(
        task_id="task-1",
        kind=TaskKind.ORCHESTRATE,
        description="Fix the bug in \u00fcber.py.",
        repo=RepoRef(
            location="https://example.org/repo.git",
            ref="main",
            commit="c" * 40,
            subdirectory="lib",
            credential="work",
            uncommitted=UncommittedChanges.INCLUDE,
        ),
        tenant="acme",
        role=Role.QA,
        context="It fails on empty input.",
        constraints=Constraints(
            rubric="Small is good.",
            requirements=("no new dependency",),
            metadata={"ticket": "42"},
            limits=Limits(
                max_iterations=5, max_tool_calls=6, max_tokens=7, timeout_seconds=8.5, command_timeout_seconds=9.5
            ),
            allowed_tools=("files",),
            denied_tools=("shell",),
            allowed_paths=("src/*",),
            checks=(
                CheckSpec(name="unit", command="make test", timeout_seconds=60, required=False, expected_exit_code=3),
            ),
            abort_on_error=True,
        ),
        environment=EnvironmentSpec(
            setup=("make venv",), variables={"CI": "1"}, path=("venv/bin",), image="python:3.11", detect=False
        ),
        delivery=Delivery(branch="fix", push=True, author_name="A", author_email="a@example.org", message="Fix it"),
        num_agents=2,
        rounds=3,
        enable_tools=False,
        tools=("files",),
        model_profile="small",
        attempt=2,
        case_id="case-1",
        story_id="story-1",
        plan_id="plan-1",
    )
    kept = Delivered(commit_sha="e" * 40, branch="refs/fleet/refused/task-1", tree="f" * 40)
    pinned = PinnedRepository(
        tenant="acme",
        location=task.repo.location,
        commit="c" * 40,
        branch="main",
        subdirectory="lib",
        credential="work",
        snapshot_of="b" * 40,
    )
    call = ToolCall(call_id="1-1", model_call_id="call_0", name="files_read_file", arguments='{"path": "a.py"}')
    assistant = AssistantMessage(content="Let me look.", tool_calls=(call,))
    started = AuditEntry(
        seq=1,
        at=AT,
        execution_id="e",
        agent_id="agent-1",
        call_id="1-1",
        tool="files",
        operation="write_file",
        arguments={"path": "\u00fc.py", "content": "x = 1\n", "count": 3, "flag": True, "none": None},
        arguments_digest=digest,
        outcome=Outcome.STARTED,
        workspace_revision=1,
    ).sealed(GENESIS)
    finished = replace(
        started,
        seq=2,
        decision=Decision.REFUSED,
        reason="not allowed",
        outcome=Outcome.REFUSED,
        exit_code=1,
        duration_ms=12,
        output_digest=digest,
        bytes_out=5,
    ).sealed(started.hash)
    result = ToolResult(
        success=False,
        operation="files_write_file",
        content="text",
        error="not allowed",
        exit_code=1,
        metadata={"path": "\u00fc.py", "tests": {"passed": 1}, "list": [1, 2.5, "x", None, True]},
        outcome=Outcome.REFUSED,
        duration=0.25,
        truncated=True,
        artifact=digest,
    )
    artifacts = Artifacts(
        commit_sha="a" * 40,
        branch="fleet/task-1",
        patch=blob,
        files_changed=("src/\u00fcber.py",),
        insertions=3,
        deletions=1,
        tests=tests,
    )
    candidate = Candidate(
        candidate_id="candidate-1",
        agent_id="agent-1",
        role=Role.QA,
        summary="Fixed.",
        stop_reason=StopReason.MAX_TOKENS,
        artifacts=artifacts,
        usage=usage,
        audit_head=finished.hash,
        submitted_at=AT,
        model="some-model",
        error="nearly",
    )
    check = CheckResult(
        kind=CheckKind.COMMAND,
        name="unit",
        passed=True,
        required=False,
        score=0.75,
        message="9 of 12",
        output="...",
        exit_code=0,
        problems=("tests/test_a.py::test_b",),
        warnings=2,
        tests=tests,
        details={"command": "make test"},
        duration_ms=99,
        skipped_reason="none",
    )
    report = CheckReport(candidate_id="candidate-1", results=(check,))
    ranked = RankedCandidate(
        candidate_id="candidate-1", rank=1, score=0.9, accepted=True, duplicates=("candidate-2",), reason="all passed"
    )
    messages = (
        SystemMessage(content="You are."),
        UserMessage(content="Do."),
        assistant,
        ToolMessage(call_id="1-1", content="ok"),
    )
    return [
        ExecutionStarted(task=task, repository=pinned, fingerprint="f" * 64),
        ExecutionClaimed(generation=2, owner="orchestrator-1"),
        RunStarted(
            role="QA",
            model="some-model",
            messages=messages,
            tools=("files_read_file", "final_answer"),
            temperature=0.7,
            seed=11,
            environment="key",
        ),
        RunClaimed(generation=2, host="host-1"),
        ModelReplied(
            step=1,
            reply=ModelReply(message=assistant, finish_reason="tool_calls", usage=usage, model="some-model"),
            duration_ms=450,
        ),
        MessageAdded(step=2, message=UserMessage(content="Call a tool.")),
        ToolStarted(entry=started),
        ToolFinished(entry=finished, result=result),
        AuditHeadSigned(
            head=SignedHead(
                agent_id="agent-1", run=2, entries=3, hash="e" * 64, key_id="0123456789abcdef", signature="f" * 128
            )
        ),
        RunFinished(
            stop_reason=StopReason.TIMEOUT,
            artifacts=artifacts,
            usage=usage,
            audit_head=finished.hash,
            answer="Fixed.",
            error="late",
        ),
        CallRepaired(step=3, call_id="1-1", repairs=("name: read_file", "fences")),
        HistoryCondensed(step=9, method="summarised", messages=messages, tokens_before=9000, tokens_after=900),
        LoopNoticed(step=12, pattern="repeat", advice="nudge"),
        PlanMade(
            step=1,
            plan=Plan(
                steps=(
                    PlanStep(
                        tool="files",
                        operation="read_file",
                        params={"path": "a.py"},
                        why="to see it",
                        on_failure=OnFailure.SKIP,
                    ),
                ),
                reasoning="Look first.",
            ),
            reason="the file was gone",
        ),
        WorkspaceNotKept(step=5, reason="a checkpoint of 70 MB"),
        WorkspaceCheckpointed(step=4, revision=7, commit="a" * 40, head="b" * 40, branch="fleet/work", bundle=blob),
        ApprovalRequested(
            request=ApprovalRequest(
                approval_id="agent-1/1-1",
                agent_id="agent-1",
                policy=ApprovalPolicy.RISKY,
                goal="Fix the bug.",
                approach="rm -rf build",
                call=call,
                step=4,
                requested_at=AT,
                expires_at=AT,
                reasons=("destructive",),
                memory="The build directory is generated.",
                diff="--- a/x\n+++ b/x\n",
                diff_ref=blob,
            ),
            usage=usage,
        ),
        ApprovalRefused(approval_id="agent-1/1-1", decision=ApprovalDecision.APPROVED, caller="ada"),
        ApprovalResolved(
            resolution=ApprovalResolution(
                approval_id="agent-1/1-1",
                decision=ApprovalDecision.ADJUSTED,
                text="Only build/tmp.",
                approver="Ada",
                caller="token",
                at=AT,
            )
        ),
        RunLost(lost_agent_id="agent-2", reason="its process died"),
        RunStopped(stopped_agent_id="agent-2", reason="agent-1 needs no further candidate beside it"),
        CandidateSubmitted(candidate=candidate),
        ChecksFinished(report=report),
        CandidatesRanked(ranking=(ranked,), winner_id="candidate-1"),
        WinnerDelivered(delivered=Delivered(commit_sha="a" * 40, branch="fix", pushed=True), report=report),
        CancelRequested(reason="enough"),
        RunReassigned(lost_agent_id="agent-2", reason="its process died", attempt=2),
        ApprovalAwaited(
            request=ApprovalRequest(
                approval_id="agent-1/1-1",
                agent_id="agent-1",
                policy=ApprovalPolicy.PLAN,
                goal="Fix the bug.",
                approach="Look first.",
                call=call,
                step=4,
                requested_at=AT,
            )
        ),
        CandidateReviewed(
            critique=Critique(
                reviewer_id="agent-2",
                candidate_id="candidate-1",
                round=1,
                verdict=ReviewVerdict.REJECT,
                score=0.25,
                content="The wrong file.",
                findings=(Finding(text="breaks the caller", file="src/\u00fcber.py", line=12, must_fix=True),),
                usage=usage,
                error="cut",
                at=AT,
            )
        ),
        RevisionJudged(candidate_id="candidate-1-r1", revises="candidate-1", kept=False, reason="fewer tests pass"),
        VotesCast(
            votes=(
                Vote(
                    judge_id="agent-2",
                    sample=2,
                    order=("candidate-2", "candidate-1"),
                    choice="candidate-1",
                    reason="smaller",
                    usage=usage,
                    error="late",
                ),
            )
        ),
        CandidateScored(
            score=VerifierScore(
                candidate_id="candidate-1", raw=0.8, score=0.7, outcomes=21, model="m", usage=usage, error="late"
            )
        ),
        SubtasksDerived(
            derivation=Derivation(
                derivation_id="derivation-1",
                subtasks=(
                    Subtask(
                        subtask_id="api",
                        description="Add the call.",
                        role=Role.QA,
                        dependencies=("model",),
                        priority=3,
                        allowed_paths=("src/*",),
                    ),
                ),
                usage=usage,
            )
        ),
        SubtaskStarted(subtask_id="api", execution_id="execution-2", base_commit="a" * 40),
        SubtaskEnded(
            outcome=SubtaskOutcome(
                subtask_id="api",
                execution_id="execution-2",
                status="completed",
                commit_sha="b" * 40,
                error="nearly",
                usage=usage,
            ),
            repository=replace(pinned, bundle=blob),
        ),
        ContextGathered(
            context=GatheredContext(
                text="The story",
                blocks=(ContextBlock(kind="story", title="Log in", text="The story", tokens=2, relevance=0.5),),
                tokens=2,
                version="e" * 64,
                omitted=("decision:d1",),
                recalled=(
                    Recollection(
                        memory=Memory(
                            namespace="fleet",
                            text="tabs, not spaces",
                            kind=MemoryKind.OUTCOME,
                            tenant="acme",
                            metadata={"repository": "r"},
                            source="execution:e0",
                            created_at=AT,
                        ),
                        score=0.75,
                        found_by="words",
                    ),
                ),
            ),
            error="no recall",
        ),
        NodeUpdated(
            node_id="fix/check[1]",
            status=NodeStatus.COMPLETED,
            attempt=2,
            inputs='{"a": 1}',
            output='{"b": [true]}',
            output_blob=blob,
            error="once",
            execution_id="execution-2",
            label="yes",
            usage=usage,
            duration_ms=12,
        ),
        BreakpointsSet(action="step", node_id="fix", by="ana"),
        ChecksStarted(candidate_id="candidate-1", command="python3 -m pytest -q"),
        ChecklistMade(
            checklist=Checklist(
                requirements=(
                    Requirement(
                        quote="1h30m is 5400",
                        probe="python3 -c 'import x; assert x.f() == 5400'",
                        met_before=False,
                        seen="AssertionError",
                    ),
                ),
                usage=usage,
            )
        ),
        EnvironmentRunFinished(
            run=EnvironmentRun(
                agent_id="environment",
                answered=True,
                proposal=EnvironmentProposal(
                    setup=("pip install y",),
                    test_command="python3 -m pytest -q tests",
                    notes="tests/test_x.py imports y",
                    source="execution-1/environment",
                ),
                kept=True,
                reason="more tests pass with it",
                before="0 pass; cannot be collected: tests/test_x.py: No module named y",
                after="3 pass",
                usage=usage,
            )
        ),
        BaselineFinished(
            baseline=Baseline(
                commit="c" * 40,
                environment="key",
                suites=(
                    SuiteBaseline(
                        command="python3 -m pytest -q",
                        tests=tests,
                        uncollected=("tests/test_x.py: No module named y",),
                        hung=("tests/test_a.py::test_slow",),
                        exit_code=1,
                        stopped="its time was up",
                        unusable="no",
                        notes=("without -x",),
                        duration_ms=900,
                    ),
                ),
                duration_ms=1000,
            ),
            error="none",
        ),
        CandidatesExamined(
            examination=Examination(
                candidates=("candidate-1", "candidate-2"),
                sets=(
                    ExaminedTests(
                        candidates=("candidate-1",),
                        tests=("tests/test_a.py::test_b", "tests/test_a.py::test_c", "tests/test_a.py::test_d"),
                        crossings=(
                            Crossing(
                                candidate_id="candidate-2",
                                passed=("tests/test_a.py::test_b",),
                                failed=(
                                    ForeignFailure(
                                        test="tests/test_a.py::test_c", message="assert 1 == 2", unchanged=True
                                    ),
                                ),
                                unsaid=("tests/test_a.py::test_d",),
                                note="none",
                            ),
                        ),
                    ),
                ),
                conflicts=(Conflict(candidate_id="candidate-1", test="t", other_id="candidate-2", other_test="u"),),
                notes=("2 of 92 pairs were left out",),
                duration_ms=900,
            )
        ),
        RefusedKept(candidate_id="candidate-1", delivered=kept),
        CandidateDelivered(candidate_id="candidate-1", delivered=kept, by="ana", reason="The old test is wrong."),
        WorkflowFinished(output='{"report": "r"}', output_blob=blob),
        ExecutionFinished(
            status=ExecutionStatus.NO_WINNER, winner_id="candidate-1", error="none", usage=usage, duration_ms=9000
        ),
        ResultPublished(),
    ]


def event(body: EventBody) -> Event:
    writer = Writer(tenant="acme", execution_id="e", task_id="task-1", agent_id="agent-1", generation=2)
    return writer.event(body, ordinal=3, at=AT)


def write_missing() -> None:
    """Write the golden file of every kind that has none yet; done once for a new kind of event."""
    GOLDEN.mkdir(exist_ok=True)
    for name, body in GOLDEN_BODIES.items():
        path = GOLDEN / f"{name}.json"
        if not path.exists():
            path.write_text(json.dumps(to_plain(event(body)), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def with_verdicts() -> dict[str, EventBody]:
    """The kinds of event that tell a verdict, or what it is about, by the names of their golden files."""
    known = {body.type: body for body in representatives()}
    started, checked = known["execution_started"], known["checks_finished"]
    ranked, delivered = known["candidates_ranked"], known["winner_delivered"]
    assert isinstance(started, ExecutionStarted) and isinstance(checked, ChecksFinished)
    assert isinstance(ranked, CandidatesRanked) and isinstance(delivered, WinnerDelivered)
    patch = SubmittedPatch(
        name="fix", patch=BlobRef(name="acme/e/aa", digest="aa", size=3, media_type="text/x-diff"), summary="It helps."
    )
    task = replace(
        started.task,
        kind=TaskKind.JUDGE,
        constraints=replace(started.task.constraints, require_verified=True),
        patches=(patch,),
    )
    results = tuple(replace(one, shown=("tests/test_a.py::test_b",)) for one in checked.report.results)
    report = replace(
        checked.report,
        results=results,
        verdict=Verdict.VERIFIED,
        reasons=("tests: 1 test fails without the change and passes with it",),
        tree="f" * 40,
    )
    ranking = tuple(replace(one, verdict=Verdict.VERIFIED) for one in ranked.ranking)
    beside = tuple(
        replace(one, tests=0.75, verdict_reasons=("1 test of candidate-2 fails: t",), verdict=Verdict.UNVERIFIED)
        for one in ranked.ranking
    )
    own = tuple(replace(one, own=one.shown) for one in results)
    foreign = ForeignTests(value=0.75, passed=1, asked=2, failing={"candidate-2": 1})
    return {
        "execution_started.judge": replace(started, task=task),
        "checks_finished.verdict": ChecksFinished(report=report),
        "checks_finished.own": ChecksFinished(report=replace(report, results=own, foreign=foreign)),
        "candidates_ranked.verdict": replace(ranked, ranking=ranking),
        "candidates_ranked.examined": replace(ranked, ranking=beside),
        "winner_delivered.verdict": replace(
            delivered, delivered=replace(delivered.delivered, tree="f" * 40), report=report
        ),
    }


KINDS = {body.type: body for body in representatives()}
GOLDEN_BODIES = {**KINDS, **with_verdicts()}


def test_every_kind_of_event_has_a_golden_file() -> None:
    assert {type(body) for body in KINDS.values()} == set(get_args(EventBody))
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(GOLDEN_BODIES)


@pytest.mark.parametrize("name", GOLDEN_BODIES)
def test_an_old_payload_still_says_the_same(name: str) -> None:
    data = (GOLDEN / f"{name}.json").read_bytes()
    loaded = from_json(Event, data)
    assert loaded == event(GOLDEN_BODIES[name])
    assert type(loaded.body) is type(GOLDEN_BODIES[name])
    assert _within(json.loads(data), to_plain(loaded))


def _within(old: object, new: object) -> bool:
    """Whether everything the old payload says stands in the new one too; new optional fields may have come."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _within(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(_within(one, other) for one, other in zip(old, new, strict=True))
    return old == new


def test_the_audit_chain_of_the_golden_events_is_whole() -> None:
    entries = [
        from_json(Event, (GOLDEN / f"{kind}.json").read_bytes()).body.entry  # type: ignore[union-attr]
        for kind in ("tool_started", "tool_finished")
    ]
    assert verify(entries, head=entries[-1].hash) is None


@pytest.mark.parametrize("kind", KINDS)
def test_round_trips(kind: str) -> None:
    stored = StoredEvent(sequence=7, event=event(KINDS[kind]))
    assert from_json(StoredEvent, to_json(stored)) == stored
    assert from_plain(StoredEvent, to_plain(stored)) == stored
    assert from_plain(StoredEvent, json.loads(json.dumps(to_plain(stored)))) == stored


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_newest_required_fields_are_required(kind: str) -> None:
    plain = to_plain(event(KINDS[kind]))
    plain["body"]["field_of_a_later_version"] = {"nested": [1]}
    assert from_plain(Event, plain) == event(KINDS[kind])
    del plain["body"]["type"]
    plain["body"]["type"] = "never_heard_of"
    with pytest.raises(ValueError, match="body"):
        from_plain(Event, plain)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(metadata=st.dictionaries(st.text(max_size=5), json_values, max_size=3), content=st.text())
def test_whatever_a_tool_says_comes_back(metadata: dict[str, object], content: str) -> None:
    result = ToolResult(success=True, operation="x", content=content, metadata=metadata)
    assert from_json(ToolResult, to_json(result)) == result


@given(arguments=st.dictionaries(st.text(max_size=5), json_values, max_size=3))
def test_a_sealed_entry_is_still_sealed_after_the_wire(arguments: dict[str, object]) -> None:
    body = KINDS["tool_started"]
    assert isinstance(body, ToolStarted)
    entry = replace(body.entry, arguments=arguments).sealed(GENESIS)
    assert verify([from_json(AuditEntry, to_json(entry))]) is None


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"null", b"[1]", b'{"id": 1}', b"\xff", b'{"body": {"type": "run_lost"}}']
)
def test_what_is_no_event_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="validation error"):
        from_json(Event, data)


def test_what_kinds_gained_later_survives_too() -> None:
    """Golden files lack it, since they are older."""
    blob = BlobRef(name="acme/e/aa", digest="aa", size=3)
    council = Council(
        council_id="council-qa",
        role=Role.QA,
        members=(
            CouncilMember(
                agent_id="agent-qa-1",
                model_profile="small",
                endpoint="agents.example.org:443",
                max_concurrent_tasks=2,
                supported_tasks=("implement",),
                languages=("python",),
                metadata={"team": "a"},
                registered_at=AT,
            ),
        ),
        rounds=2,
        peer_review=False,
        model_profile="large",
        agent_type="external",
        custom_params={"temperature": "0.5"},
    )
    started = KINDS["execution_started"]
    assert isinstance(started, ExecutionStarted)
    task = replace(started.task, priority=7, caller="ada", architect_top_k=2, derive_subtasks=True)
    task = replace(task, parent_execution_id="execution-0")
    pinned = replace(started.repository, bundle=blob)
    candidate = KINDS["candidate_submitted"]
    assert isinstance(candidate, CandidateSubmitted)
    revised = replace(candidate.candidate, author_id="agent-1", round=1, revises="candidate-0")
    ranked = RankedCandidate(
        candidate_id="c", rank=1, score=0.5, accepted=True, evidence=0.25, review=0.75, votes=0.125
    )
    for body in (
        replace(started, task=task, repository=pinned, council=council),
        CandidateSubmitted(candidate=revised),
        CandidatesRanked(ranking=(ranked,)),
    ):
        assert from_json(Event, to_json(event(body))) == event(body)


if __name__ == "__main__":
    write_missing()
